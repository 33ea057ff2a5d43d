"""The base class of tasks: problems, prompts and a judge of responses. Imports no torch.

A task is one class. Its fields are the keys of the section ``task``; defining it registers its name:

    class Reverse(Task):
        \"\"\"Words to write backwards.\"\"\"

        name: Literal["rev"] = Field("rev", description="rev = words to write backwards.")
        data: Data = "rev-gen"
        sets: ClassVar = {"rev-gen": generated_set("Words, drawn here.")}

        def generate(self, split, count, seed): ...
        def prompt(self, problem, tokenizer): ...
        def judge(self, problem, response, *, truncated=False): ...
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PrivateAttr, field_validator

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.section import Choice, Contradiction, Count, Text
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.core.user_code import without_folder
from rlvr_cli.tasks.answers import boxed_answer, last_tagged
from rlvr_cli.tasks.data import FromData
from rlvr_cli.tasks.fetch import origin_of
from rlvr_cli.tasks.problem import DataSet, DataSplit, Judging, Problem, Rule, Split, Verdict
from rlvr_cli.tasks.prompts import check_template_options

# Prompts of a set that are measured before a training or an evaluation.
PROMPTS_MEASURED = 256
# Problems generated for training if `train_size` is null, and a number above the size of any data set.
GENERATED, ALL_ROWS = 4096, 2**40
# Seed of the held-out problems: the same for every run and evaluation.
HELD_OUT_SEED = 0
# Shares of unknown tokens in prompts at which a training is refused, and at which a warning is printed. A real
# tokenizer may lack a rare sign; the lab's has only the words of its task.
UNREADABLE, HARDLY_READABLE = 0.5, 0.01

Data = Annotated[
    Text,
    Field(
        description="The problems: a data set's name (`rlvr tasks sets`; those that end in -gen are generated), a hub "
        "id (owner/name, owner/name:configuration@revision), a file of rows (JSONL, JSON, CSV, parquet) or a folder of "
        "them. null = the generated ones; of a task without any, its default."
    ),
]
DataDir = Annotated[
    Text | None,
    Field(
        description="Folder of named data sets; null = RLVR_DATA_DIR if that is set, else data/public if "
        "`rlvr tasks fetch` has put the set there, else the hub. An explicit null means the hub."
    ),
]
RuleKey = Annotated[Rule, Field(description="paper = the papers' rewards; strict = judges meaning, not surface.")]


class Task(FromData, Choice):
    """A source of problems, the form of their prompts, and a judge of responses.

    A task has ``prompt``, ``judge``, and ``generate`` or ``problem_from`` (or both); the rest has defaults.
    """

    chooser: ClassVar[str] = "name"

    # The task's data sets by name; the generated problems are `<name>-gen`.
    sets: ClassVar[Mapping[str, DataSet]] = {}
    # Whether it is user code, which commands that only read do not import.
    runs_own_code: ClassVar[bool] = False
    # Every value of ``Verdict.reason``.
    reasons: ClassVar[tuple[str, ...]] = ("correct", "wrong")
    # Keys that affect neither problems nor prompts nor verdicts.
    not_deciding: ClassVar[tuple[str, ...]] = ()
    # Keys, besides those of every task, on which the set of problems depends.
    problem_keys: ClassVar[tuple[str, ...]] = ()
    # Whether answers are compared in worker processes, which start by themselves.
    pooled: ClassVar[bool] = False
    # Key -> its values that bypass the chat template, whose variables then have no effect.
    templateless: ClassVar[Mapping[str, Collection[str | bool]]] = {}

    name: str
    # `data` as a run's configuration has it, if that path is relative to another folder.
    _written_data: str | None = PrivateAttr(None)

    train_size: Count | None = Field(
        None, description="Number of training problems; null = all that the data have, or 4,096 generated ones."
    )
    data: Data
    data_dir: DataDir = None
    chat_template_kwargs: dict[Text, bool | int | float | str] = Field(
        {},
        description="Variables of the model's chat template, as TRL's option of that name: {enable_thinking: false} "
        "for models with that switch.",
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Keep the tasks in the order of their names, whatever the order of imports."""
        super().__pydantic_init_subclass__(**options)
        if not cls.is_family():
            Task.kinds = dict(sorted(Task.kinds.items()))

    @classmethod
    def about_unknown(cls, choice: Any) -> str:
        """Return a hint for the name of a data set given in place of a task."""
        kinds = Task.kinds.items() if isinstance(choice, str) else ()
        task = next((name for name, kind in kinds if choice in kind.sets), None)  # type: ignore[attr-defined]
        return f" It is a data set of the task {task}: task={task} task.data={choice}." if task else ""

    @field_validator("data", mode="before")
    @classmethod
    def _null_is_generated(cls, value: Any) -> Any:
        if value is not None:
            return value
        generated = f"{cls.model_fields['name'].default}-gen"
        return generated if generated in cls.sets else cls.model_fields["data"].default

    @property
    def reward_range(self) -> tuple[float, float]:
        """The lowest and the highest reward; a flipped reward is mirrored between them."""
        return 0.0, 1.0

    @property
    def format_range(self) -> tuple[float, float] | None:
        """The lowest and the highest value of the reward's component `format`; None without one."""
        return None

    @property
    def prompt_tokens(self) -> int:
        """The tokens of a long prompt, for plans that read no data."""
        return 1024

    @property
    def settings(self) -> dict[str, Any]:
        """The JSON values on which problems, prompts and verdicts depend; evaluations record and compare them."""
        excluded = {"train_size", "data_dir", *self.not_deciding}
        excluded |= set() if self.chat_template_kwargs else {"chat_template_kwargs"}
        keys = (*type(self).model_fields, *(self.model_extra or ()))
        plain = {key: _plain(getattr(self, key)) for key in keys if key not in excluded}
        if "file" in plain:  # a user file is identified by its digest
            plain["file"] = without_folder(plain["file"])
        return plain if self._written_data is None else {**plain, "data": self._written_data}

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the conflicts between keys of the task."""
        for key, values in self.templateless.items():
            if self.chat_template_kwargs and getattr(self, key) in values:
                yield Contradiction(
                    ("task.chat_template_kwargs", f"task.{key}"),
                    f"task.chat_template_kwargs are variables of the chat template, and task.{key}="
                    f"{json.dumps(getattr(self, key))} leaves it out",
                )

    def without_verifier(self) -> tuple[str, str, str] | None:
        """Return key, value and meaning of a reward that ignores the answer; None for a verifier's."""
        random_reward = getattr(self, "reward", None) == "random"
        return ("task.reward", "random", "the toss of a coin") if random_reward else None

    def problem_wording(self, problem: Problem) -> str:
        """Return the question, which identifies a problem whatever its file, id and answer."""
        return problem.question

    def for_model(self, style: str) -> Self:
        """Return the task for a model that was trained on prompts of ``style``.

        Raises UserError where the task's keys rule out such prompts.
        """
        return self

    def with_rule(self, rule: str) -> tuple[str, str]:
        """Return the key and value of ``--rule paper`` and ``--rule strict``."""
        return "rule", rule

    @classmethod
    def keys_for(cls, keys: Mapping[str, Any], style: str | None) -> Mapping[str, Any]:
        """Return a benchmark's keys of the section, restricted to what prompts of ``style`` can express."""
        return keys

    def check_before(self) -> None:
        """Check the task's requirements before anything is loaded. Raises UserError."""

    def about_data(self) -> str | None:
        """Return one line on the origin and the number of rows, or None."""
        named = self.data in self.sets and not self.is_generated
        return origin_of(self.data, self.sets[self.data].hub, self.data_dir) if named else None

    @property
    def training_problems(self) -> int:
        return self.train_size or (GENERATED if self.is_generated else ALL_ROWS)

    def count_local(self, split: DataSplit, most: int) -> int | None:
        """Count the problems of ``split``, up to ``most``; None where that would need a download.

        Raises UserError as :meth:`load` does.
        """
        if self.is_generated:
            return most
        if self.data_dir is None and not local_path(self.data).exists():
            return None
        return min(most, len(self.load(split)))

    def problems(self, split: DataSplit, count: int, seed: int) -> list[Problem]:
        """Return ``count`` distinct problems of ``split``, the same for the same arguments.

        A loaded set may have fewer. Raises UserError when the data cannot be read or has no matching row.
        """
        if self.is_generated:
            if split == "all":
                raise UserError(
                    "split `all` is for loaded problems (task.data); generated ones have train, dev and test."
                )
            return self.generate(split, count, seed)
        problems = self.load(split)
        random.Random(stream_seed(seed, self.name, "rows", split)).shuffle(problems)
        return problems[:count]

    @property
    def is_generated(self) -> bool:
        return self.data in self.sets and self.sets[self.data].generated

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        """Generate ``count`` distinct problems of ``split``, the same for the same arguments."""
        raise NotImplementedError(f"{self.name} generates no problems")

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """Return the problem of a row's fields, or of a response's `problem`.

        Raises UserError naming ``where`` and the field.
        """
        raise NotImplementedError(f"{self.name} reads no problems")

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """Return the full prompt, with the chat template applied if the tokenizer has one."""
        raise NotImplementedError(f"{self.name} writes no prompts")

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """Judge the model's text after the prompt; the default calls ``judge_many``.

        Pure: no state, no exception for any string, time linear in its length. ``truncated``: the response was cut at
        the token limit.
        """
        return self.judge_many([problem], [response], [truncated])[0]

    def judge_many(
        self,
        problems: Sequence[Problem],
        responses: Sequence[str],
        truncated: Sequence[bool],
        token_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[Verdict]:
        """Return the verdict of ``judge`` on each response, in order.

        Args:
            token_ids: the tokens of each response, for judges that use them; None = unknown.
        """
        rows = zip(problems, responses, truncated, strict=True)
        judging = self.judging()
        if judging is None:
            if type(self).judge is Task.judge:
                raise NotImplementedError(f"{self.name} judges nothing")
            return [self.judge(problem, response, truncated=cut) for problem, response, cut in rows]
        with judging:
            for problem, response, cut in rows:
                judging.add(problem, response, truncated=cut)
            return judging.verdicts()

    def judging(self) -> Judging | None:
        """Start judging responses that arrive one by one, in worker processes; None for a judge in this process."""
        return None

    def same_answers(self, answers: Sequence[Sequence[str]]) -> list[dict[str, str]]:
        """Group equal wrong answers for majority votes by the verdicts' equality; the default compares spellings.

        Args:
            answers: for each problem, the spellings in the order of its samples.
        Returns:
            For each problem: answer -> the first equal spelling, for answers that are spelled otherwise.
        """
        return [{} for _ in answers]

    def with_workers(self, workers: int) -> Self:
        """Return the task with that number of judging processes, if it is ``pooled``."""
        return self

    def solutions(self, problem: Problem) -> Iterator[str] | None:
        """Return responses that ``judge`` finds correct, as demonstrations for supervised fine-tuning.

        At least one, finitely many, always the same; None without any. Raises UserError when the problem lacks what is
        needed to solve it.
        """
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in sorted(value.items())}
    return list(value) if isinstance(value, tuple) else value


def prompt_ids(task: Task, problem: Problem, tokenizer: Any) -> list[int]:
    """Tokenize a problem's prompt. Its text has the special tokens, so none are added.

    Raises UserError where the task sets variables that the model's chat template lacks.
    """
    check_template_options(task.chat_template_kwargs, tokenizer)
    return list(tokenizer(task.prompt(problem, tokenizer), add_special_tokens=False)["input_ids"])


def unread_share(prompts: Sequence[Sequence[int]], tokenizer: Any) -> float:
    """Return the share of unknown tokens in the prompts; 0 for a tokenizer without an unknown token."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    count = sum(map(len, prompts))
    if unknown is None or not count:
        return 0.0
    return sum(int(token == unknown) for prompt in prompts for token in prompt) / count


def response_text(tokenizer: Any, token_ids: Sequence[int], stops: Collection[int]) -> str:
    """Decode a completion for judges: with special tokens, but without a final one of ``stops``.

    Some tokenizers have tags such as ``<think>`` as special tokens. Rollouts, evaluations and trainer classes all use
    this function.

    Args:
        stops: the ids that end a completion (``models.load.stop_ids``): the tokenizer's, and the generation config's.
    """
    ids = list(token_ids)
    if ids and ids[-1] in stops:
        ids.pop()
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def vote(response: str) -> str | None:
    r"""Return the answer for majority votes: the last <answer> block, the last \boxed, or the last line, or None."""
    answer = last_tagged(response)
    answer = boxed_answer(response) if answer is None else answer
    lines = response.strip().splitlines() if answer is None else [answer]
    return " ".join(lines[-1].split()) or None if lines else None
