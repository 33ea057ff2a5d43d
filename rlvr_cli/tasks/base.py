"""The base class of tasks: problems, prompts and a judge of responses. Imports no torch.

The fields of a task class are the keys of the section ``task``; defining the class registers its name:

    class Reverse(Task):
        \"\"\"Words to write backwards.\"\"\"

        name: Literal["rev"] = Field("rev", description="rev = words to write backwards.")
        data: Data = "rev-gen"
        sets: ClassVar = {"rev-gen": generated_set("Random words.")}

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
from rlvr_cli.core.user_code import strip_folder
from rlvr_cli.tasks.answers import boxed_answer, last_tagged
from rlvr_cli.tasks.data import RowReader
from rlvr_cli.tasks.fetch import describe_origin
from rlvr_cli.tasks.problem import DataSet, DataSplit, JudgeSession, Problem, Rule, Split, Verdict
from rlvr_cli.tasks.prompts import check_template_options

# Prompts tokenized before a training or an evaluation, to measure lengths and unknown tokens.
PROMPTS_MEASURED = 256
# Generated training problems if `train_size` is null, and a count above the size of any data set.
DEFAULT_TRAIN_SIZE, ALL_ROWS = 4096, 2**40
# Seed of the held-out problems: the same for every run and evaluation.
HELD_OUT_SEED = 0
# Shares of unknown tokens in prompts that stop a training, and that print a warning. A real tokenizer may lack a rare
# sign; the lab's has only the words of its task.
UNREADABLE, HARDLY_READABLE = 0.5, 0.01

Data = Annotated[
    Text,
    Field(
        description="The problems: a data set's name (`rlvr tasks sets`; those that end in -gen are generated), a hub "
        "id (owner/name, owner/name:configuration@revision), a file of rows (JSONL, JSON, CSV, parquet) or a folder of "
        "them. null = the generated ones, or the default of a task without any."
    ),
]
DataDir = Annotated[
    Text | None,
    Field(
        description="Folder of named data sets; null = RLVR_DATA_DIR if set, else data/public if it has the set "
        "(`rlvr tasks fetch`), else the hub. An explicit null means the hub."
    ),
]
RuleKey = Annotated[Rule, Field(description="paper = the papers' rewards; strict = judges meaning, not surface.")]


class Task(RowReader, Choice):
    """A source of problems, their prompt format, and a judge of responses.

    Subclasses define ``prompt``, ``judge``, and ``generate`` or ``problem_from`` (or both); the rest has defaults.
    """

    chooser: ClassVar[str] = "name"

    # The task's data sets by name; the generated problems are `<name>-gen`.
    sets: ClassVar[Mapping[str, DataSet]] = {}
    # Whether the task runs user code, which read-only commands do not import.
    runs_user_code: ClassVar[bool] = False
    # Every value of ``Verdict.reason``.
    reasons: ClassVar[tuple[str, ...]] = ("correct", "wrong")
    # Keys that affect neither problems nor prompts nor verdicts.
    neutral_keys: ClassVar[tuple[str, ...]] = ()
    # Keys on which the set of problems depends, in addition to those of every task.
    problem_keys: ClassVar[tuple[str, ...]] = ()
    # Whether answers are compared in worker processes, started on demand.
    pooled: ClassVar[bool] = False
    # Whether rollouts keep the shares of subgroups, and metrics have each subgroup's accuracy.
    by_subgroup: ClassVar[bool] = False
    # Key -> the values that bypass the chat template, so that its variables have no effect.
    bypasses_template: ClassVar[Mapping[str, Collection[str | bool]]] = {}

    name: str
    # `data` as written in the run's configuration, if that path is relative to another folder.
    _written_data: str | None = PrivateAttr(None)

    train_size: Count | None = Field(
        None, description="Number of training problems; null = all of the data, or 4,096 generated ones."
    )
    data: Data
    data_dir: DataDir = None
    chat_template_kwargs: dict[Text, bool | int | float | str] = Field(
        {},
        description="Variables of the model's chat template, as in TRL: {enable_thinking: false} for models with that "
        "switch.",
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Sort the registry by name, independently of the import order."""
        super().__pydantic_init_subclass__(**options)
        if not cls.is_family():
            Task.kinds = dict(sorted(Task.kinds.items()))

    @classmethod
    def unknown_choice_hint(cls, choice: Any) -> str:
        """Return a hint if the unknown task is the name of a data set."""
        kinds = Task.kinds.items() if isinstance(choice, str) else ()
        task = next((name for name, kind in kinds if choice in kind.sets), None)  # type: ignore[attr-defined]
        return f" It is a data set of the task {task}: task={task} task.data={choice}." if task else ""

    @field_validator("data", mode="before")
    @classmethod
    def _resolve_null(cls, value: Any) -> Any:
        if value is not None:
            return value
        generated = f"{cls.model_fields['name'].default}-gen"
        return generated if generated in cls.sets else cls.model_fields["data"].default

    @property
    def reward_range(self) -> tuple[float, float]:
        """The lowest and the highest reward; a flipped reward is mirrored between them."""
        return 0.0, 1.0

    def task_of(self, problem: Problem) -> Task:
        """Return the task that judges a problem: a component of a mixture."""
        return self

    @property
    def components(self) -> Sequence[Task]:
        """The tasks whose data this task reads."""
        return (self,)

    @property
    def part_weights(self) -> Mapping[str, float]:
        """The weights other than 1 in the parts of a verdict, by part; a part includes its weight."""
        return {}

    @property
    def format_range(self) -> tuple[float, float] | None:
        """The lowest and the highest value of the reward component `format`; None without one."""
        return None

    @property
    def prompt_tokens(self) -> int:
        """Estimated tokens of a long prompt, for plans that read no data."""
        return 1024

    @property
    def settings(self) -> dict[str, Any]:
        """The keys that determine problems, prompts and verdicts, as JSON; evaluations record and compare them."""
        excluded = {"train_size", "data_dir", *self.neutral_keys}
        excluded |= set() if self.chat_template_kwargs else {"chat_template_kwargs"}
        keys = (*type(self).model_fields, *(self.model_extra or ()))
        plain = {key: _sorted_values(getattr(self, key)) for key in keys if key not in excluded}
        if "file" in plain:  # a user file is identified by its digest
            plain["file"] = strip_folder(plain["file"])
        return plain if self._written_data is None else {**plain, "data": self._written_data}

    def contradictions(self) -> Iterator[Contradiction]:
        for key, values in self.bypasses_template.items():
            if self.chat_template_kwargs and getattr(self, key) in values:
                yield Contradiction(
                    ("task.chat_template_kwargs", f"task.{key}"),
                    f"task.chat_template_kwargs are variables of the chat template, and task.{key}="
                    f"{json.dumps(getattr(self, key))} leaves it out",
                )

    def problem_wording(self, problem: Problem) -> str:
        """Return the text that identifies a problem across files and ids: its question."""
        return problem.question

    def for_model(self, style: str) -> Self:
        """Return the task with the prompts of a model trained on ``style``. Raises UserError for incompatible keys."""
        return self

    @classmethod
    def rule_override(cls, rule: str) -> tuple[str, str]:
        """Return the key and value of ``--rule paper`` and ``--rule strict``."""
        return "rule", rule

    @classmethod
    def restrict_keys(cls, keys: Mapping[str, Any], style: str | None) -> Mapping[str, Any]:
        """Restrict a benchmark's keys of the section to problems that prompts of ``style`` can express."""
        return keys

    def check_requirements(self) -> None:
        """Check the task's requirements before models and data are loaded. Raises UserError."""

    def describe_data(self) -> str | None:
        named = self.data in self.sets and not self.is_generated
        return describe_origin(self.data, self.sets[self.data].hub, self.data_dir) if named else None

    @property
    def training_problems(self) -> int:
        return self.train_size or (DEFAULT_TRAIN_SIZE if self.is_generated else ALL_ROWS)

    def count_local(self, split: DataSplit, most: int) -> int | None:
        """Count the problems of ``split``, up to ``most``; None if they are on the hub. Raises as :meth:`load`."""
        if self.is_generated:
            return most
        if self.data_dir is None and not local_path(self.data).exists():
            return None
        return min(most, len(self.load(split)))

    def problems(self, split: DataSplit, count: int, seed: int) -> list[Problem]:
        """Return ``count`` distinct problems of ``split``, the same for the same arguments.

        A loaded set may have fewer. Raises UserError if the data cannot be read or has no problem of ``split``.
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
        """Return the problem of a row's fields, or of a stored response's `problem`.

        Raises UserError with ``where`` and the field.
        """
        raise NotImplementedError(f"{self.name} reads no problems")

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """Return the full prompt, with the chat template applied if the tokenizer has one."""
        raise NotImplementedError(f"{self.name} writes no prompts")

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """Judge a response; the default calls ``judge_many``.

        Pure: no state, no exception for any string, time linear in its length. ``truncated``: the response reached the
        token limit.
        """
        return self.judge_many([problem], [response], [truncated])[0]

    def judge_many(
        self,
        problems: Sequence[Problem],
        responses: Sequence[str],
        truncated: Sequence[bool],
        token_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[Verdict]:
        """Return the verdict of ``judge`` on each response, in order; ``token_ids``: of the responses, if known."""
        rows = zip(problems, responses, truncated, strict=True)
        session = self.start_judging()
        if session is None:
            if type(self).judge is Task.judge:
                raise NotImplementedError(f"{self.name} judges nothing")
            return [self.judge(problem, response, truncated=cut) for problem, response, cut in rows]
        with session:
            for problem, response, cut in rows:
                session.add(problem, response, truncated=cut)
            return session.verdicts()

    def start_judging(self) -> JudgeSession | None:
        """Start a session that judges responses in worker processes as they arrive; None = judge in this process."""
        return None

    def group_answers(self, answers: Sequence[Sequence[str]]) -> list[dict[str, str]]:
        """Group equivalent answers for majority votes; by default only equal spellings are equivalent.

        ``answers``: for each problem, in the order of its samples. Returns, for each problem, the first equivalent of
        each answer that is spelled differently.
        """
        return [{} for _ in answers]

    def with_workers(self, workers: int) -> Self:
        """Return the task with ``workers`` judging processes, if it is ``pooled``."""
        return self

    def solutions(self, problem: Problem) -> Iterator[str] | None:
        """Return correct responses as demonstrations for supervised fine-tuning, or None.

        At least one, finitely many, deterministic. Raises UserError if the problem lacks the fields for a solution.
        """
        return None


def _sorted_values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in sorted(value.items())}
    return list(value) if isinstance(value, tuple) else value


def prompt_ids(task: Task, problem: Problem, tokenizer: Any) -> list[int]:
    """Tokenize a prompt, whose text has the special tokens. Raises UserError for unknown template variables."""
    check_template_options(task.chat_template_kwargs, tokenizer)
    return list(tokenizer(task.prompt(problem, tokenizer), add_special_tokens=False)["input_ids"])


def unknown_token_share(prompts: Sequence[Sequence[int]], tokenizer: Any) -> float:
    """Return the share of unknown tokens in the prompts; 0 for a tokenizer without an unknown token."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    count = sum(map(len, prompts))
    if unknown is None or not count:
        return 0.0
    return sum(int(token == unknown) for prompt in prompts for token in prompt) / count


def response_text(tokenizer: Any, token_ids: Sequence[int], stops: Collection[int]) -> str:
    """Decode a completion for judges, keeping special tokens (tags such as ``<think>``) but a final stop token.

    ``stops``: the ids that end a completion (``models.load.eos_token_ids``).
    """
    ids = list(token_ids)
    if ids and ids[-1] in stops:
        ids.pop()
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def extract_vote(response: str) -> str | None:
    r"""Return the answer for majority votes: the last <answer> block, else the last \boxed, else the last line."""
    answer = last_tagged(response)
    answer = boxed_answer(response) if answer is None else answer
    lines = response.strip().splitlines() if answer is None else [answer]
    return " ".join(lines[-1].split()) or None if lines else None
