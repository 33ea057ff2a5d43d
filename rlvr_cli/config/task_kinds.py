"""The keys of each task: which problems there are, how prompts are written and how responses are judged."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from rlvr_cli.config.data_sets import generated_name
from rlvr_cli.core.section import Count, Probability, Section, Text

Share = Annotated[float, Field(gt=0.0, le=1.0)]
Rule = Literal["paper", "strict"]
Data = Annotated[
    Text,
    Field(
        description="The problems: a data set's name (`rlvr tasks sets`; those that end in -gen are generated), a hub "
        "id, a file or a folder of JSONL. null = the generated ones."
    ),
]
DataDir = Annotated[
    Text | None,
    Field(
        description="Folder in which a data set's name is looked for; null = RLVR_DATA_DIR where that is set, else the "
        "hub. A null that is written out is the hub."
    ),
]


class _Task(Section):
    """What every task has."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_generated(cls, values: Any) -> Any:
        """Earlier versions wrote null for generated problems; every record says their name now."""
        if isinstance(values, dict) and "data" in values and values["data"] is None:
            return {**values, "data": generated_name(cls.model_fields["name"].default)}
        return values


class KKTaskConfig(_Task):
    """Knights & Knaves puzzles."""

    name: Literal["kk"] = Field("kk", description="kk = Knights & Knaves puzzles.")
    people: dict[Annotated[int, Field(ge=2, le=8)], Share] = Field(
        {2: 0.3, 3: 0.4, 4: 0.3},
        min_length=1,
        description="Number of people (2 to 8) -> share of the problems; the shares sum to 1.",
    )
    compound: Probability = Field(
        0.6, description="Share of statements that join two claims (and, or, if-then, if and only if)."
    )
    depth: Annotated[int, Field(ge=1, le=4)] = Field(
        1, description="How deep claims nest inside a compound statement; 1 = plain claims."
    )
    train_size: Count = Field(4096, description="Size of the training set.")
    style: Literal["auto", "logic_rl", "compact"] = Field(
        "auto",
        description="How prompts are written: logic_rl (the paper's English), compact (the lab's words), "
        "auto = what the model was made for.",
    )
    data: Data = "kk-gen"
    data_dir: DataDir = None
    reward: Literal["logic_rl", "strict", "zero_one", "random"] = Field(
        "logic_rl",
        description="logic_rl = the Logic-RL paper's score; strict = judges meaning, not surface; zero_one = 1 for "
        "what logic_rl takes for right, else 0; random = a coin that knows nothing of the answer, a control from which "
        "nothing should be learned.",
    )


class CountdownTaskConfig(_Task):
    """Countdown: reach a target with given numbers."""

    name: Literal["countdown"] = Field("countdown", description="countdown = reach a target with given numbers.")
    numbers: dict[Annotated[int, Field(ge=3, le=4)], Share] = Field(
        {3: 0.5, 4: 0.5},
        min_length=1,
        description="How many numbers are given (3 or 4) -> share of the problems; the shares sum to 1.",
    )
    train_size: Count = Field(4096, description="Size of the training set.")
    style: Literal["tiny_zero", "tiny_zero_base"] = Field(
        "tiny_zero",
        description="How prompts are written: tiny_zero (TinyZero's, as chat turns where the model has a chat "
        "template), tiny_zero_base (TinyZero's for base models, always plain text).",
    )
    data: Data = "countdown-gen"
    data_dir: DataDir = None
    reward: Literal["tiny_zero", "zero_one"] = Field(
        "tiny_zero",
        description="tiny_zero = TinyZero's: 0.1 for an answer block and 0.9 more for a right answer; zero_one = 1 for "
        "a right answer, else 0.",
    )
    rule: Rule = Field("paper", description="paper = the papers' rewards; strict = judges meaning, not surface.")


class AnswerTaskConfig(_Task):
    """What the tasks with one gold answer share."""

    name: str
    train_size: Count = Field(4096, description="Size of the training set.")
    style: Literal["auto", "boxed", "reasoning_answer"] = Field(
        "auto",
        description="How prompts are written: boxed (the answer in \\boxed{}), reasoning_answer (GTPO's <reasoning> "
        "and <answer>), auto = what the reward asks for.",
    )
    template: Literal["auto", "none"] = Field(
        "auto", description="auto = prompts go through the model's chat template where it has one; none = plain text."
    )
    data: Data
    data_dir: DataDir = None
    reward: Literal["zero_one", "plus_minus", "gtpo"] = Field(
        "zero_one",
        description="zero_one = 0 or 1 (AR-Lopti); plus_minus = -1 or +1 with a check of the format (DGPO); gtpo = "
        "10, 1 or 0 for the format and 10 for the answer (GTPO).",
    )
    rule: Rule = Field("paper", description="paper = the papers' rewards; strict = judges meaning, not surface.")


class MathTaskConfig(AnswerTaskConfig):
    """Mathematics with a boxed answer."""

    name: Literal["math"] = Field("math", description="math = mathematics with a boxed answer.")
    data: Data = "math-gen"


class GSM8KTaskConfig(AnswerTaskConfig):
    """Grade-school word problems."""

    name: Literal["gsm8k"] = Field("gsm8k", description="gsm8k = grade-school word problems.")
    data: Data = "gsm8k"


class HiTabTaskConfig(_Task):
    """Questions on hierarchical tables."""

    name: Literal["hitab"] = Field("hitab", description="hitab = questions on hierarchical tables.")
    train_size: Count = Field(4096, description="Size of the training set.")
    style: Literal["answer_tag", "boxed"] = Field(
        "answer_tag",
        description="How prompts are written: answer_tag (the answer in <answer> after <think>), boxed (in \\boxed{}).",
    )
    data: Data = "hitab"
    data_dir: DataDir = None
    tolerance: Annotated[float, Field(ge=0.0, le=1.0)] = Field(
        1e-5, description="Numbers are equal when they differ by at most this (not a share: the difference itself)."
    )
    percent: Literal["as_written", "ratio", "either"] = Field(
        "as_written",
        description="What 69.1% is: as_written = 69.1, ratio = 0.691, either = whichever of the two is right.",
    )
    sign: Literal["exact", "either"] = Field("exact", description="exact = the sign counts; either = it does not.")
    corrected: bool = Field(
        False, description="Use the HiTab maintainers' corrected questions and answers where a row has them."
    )
    rule: Rule = Field("paper", description="paper = the papers' rewards; strict = judges meaning, not surface.")
