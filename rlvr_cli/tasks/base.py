"""What a task is: problems, their prompts, and a judge for responses. Nothing here needs torch.

A task is one class. Its fields are the keys of the section ``task``, and it has a name on the command line by being
defined:

    class Reverse(Task):
        \"\"\"Words to write backwards.\"\"\"

        name: Literal["rev"] = Field("rev", description="rev = words to write backwards.")
        data: Data = "rev-gen"
        sets: ClassVar = {"rev-gen": made_here("Words, drawn here.")}

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

# How many of a set's prompts are looked at before a model is trained or evaluated on them.
PROMPTS_MEASURED = 256
# How many problems are generated for training where `train_size` is null, and a number that no data reaches.
GENERATED, ALL_ROWS = 4096, 2**40
# Seed of the held-out problems: the same for every run and evaluation.
HELD_OUT_SEED = 0
# Shares of unknown tokens in prompts: from the first on a training is refused, from the second on one is warned. A real
# tokenizer may not know a rare sign; the lab's knows hardly a word of another task than its own.
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
        description="Folder of the data sets that are named; null = RLVR_DATA_DIR if that is set, else data/public if "
        "`rlvr tasks fetch` has put the set there, else the hub. An explicit null means the hub."
    ),
]
RuleKey = Annotated[Rule, Field(description="paper = the papers' rewards; strict = judges meaning, not surface.")]


class Task(FromData, Choice):
    """Where problems come from, how a prompt is written and how a response is judged.

    A task has ``prompt``, ``judge``, and ``generate`` or ``problem_from`` (or both); the rest has defaults.
    """

    chooser: ClassVar[str] = "name"

    # The data sets that it judges, by name. The generated problems are called `<name>-gen`.
    sets: ClassVar[Mapping[str, DataSet]] = {}
    # Whether it is code of the user's, which commands that only read do not import.
    runs_own_code: ClassVar[bool] = False
    # Every reason that ``judge`` can give.
    reasons: ClassVar[tuple[str, ...]] = ("correct", "wrong")
    # Keys that decide neither problems nor prompts nor verdicts.
    not_deciding: ClassVar[tuple[str, ...]] = ()
    # Keys of its own, aside from those of every task, that decide which problems there are.
    problem_keys: ClassVar[tuple[str, ...]] = ()
    # Whether answers are compared in processes of their own, which a caller has no need to start.
    pooled: ClassVar[bool] = False
    # Key -> its values that leave the chat template out, whose variables then have no effect.
    templateless: ClassVar[Mapping[str, Collection[str | bool]]] = {}

    name: str
    # `data` as a run's configuration has it, where that is a path from another folder than this one.
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
        """Tasks stand in the order of their names, whichever module was imported first."""
        super().__pydantic_init_subclass__(**options)
        if not cls.is_family():
            Task.kinds = dict(sorted(Task.kinds.items()))

    @classmethod
    def about_unknown(cls, choice: Any) -> str:
        """Name the task of a data set that was given in place of a task."""
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
        """The lowest and the highest reward that ``judge`` can give; between them a flipped reward is mirrored."""
        return 0.0, 1.0

    @property
    def format_range(self) -> tuple[float, float] | None:
        """The lowest and the highest value of the reward's part `format`; None where it has none."""
        return None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a long prompt, to plan with before any was read."""
        return 1024

    @property
    def settings(self) -> dict[str, Any]:
        """The JSON values that decide problems, prompts and verdicts; evaluations record and compare them."""
        excluded = {"train_size", "data_dir", *self.not_deciding}
        excluded |= set() if self.chat_template_kwargs else {"chat_template_kwargs"}
        keys = (*type(self).model_fields, *(self.model_extra or ()))
        plain = {key: _plain(getattr(self, key)) for key in keys if key not in excluded}
        if "file" in plain:  # of a user file, whose digest tells it apart
            plain["file"] = without_folder(plain["file"])
        return plain if self._written_data is None else {**plain, "data": self._written_data}

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield what cannot hold between several keys of the task."""
        for key, values in self.templateless.items():
            if self.chat_template_kwargs and getattr(self, key) in values:
                yield Contradiction(
                    ("task.chat_template_kwargs", f"task.{key}"),
                    f"task.chat_template_kwargs are variables of the chat template, and task.{key}="
                    f"{json.dumps(getattr(self, key))} leaves it out",
                )

    def without_verifier(self) -> tuple[str, str, str] | None:
        """Return key, value and meaning of a reward that knows nothing of the answer; None where a verifier decides."""
        random_reward = getattr(self, "reward", None) == "random"
        return ("task.reward", "random", "the toss of a coin") if random_reward else None

    def problem_wording(self, problem: Problem) -> str:
        """Return what is asked: it identifies a problem in another file, under another id or with another answer."""
        return problem.question

    def for_model(self, style: str) -> Self:
        """The task for a model that was made for prompts of ``style``.

        Raises UserError where the keys and such prompts do not go together.
        """
        return self

    def with_rule(self, rule: str) -> tuple[str, str]:
        """The key and value that stand for ``--rule paper`` and ``--rule strict``."""
        return "rule", rule

    @classmethod
    def keys_for(cls, keys: Mapping[str, Any], style: str | None) -> Mapping[str, Any]:
        """A benchmark's keys of the section, as far as prompts of ``style`` can hold them."""
        return keys

    def check_before(self) -> None:
        """Refuse, before anything is loaded, a task that lacks something. Raises UserError."""

    def about_data(self) -> str | None:
        """One line on the origin and the number of rows; None where nothing needs saying."""
        named = self.data in self.sets and not self.is_generated
        return origin_of(self.data, self.sets[self.data].hub, self.data_dir) if named else None

    @property
    def training_problems(self) -> int:
        """The largest number of problems to train on."""
        return self.train_size or (GENERATED if self.is_generated else ALL_ROWS)

    def count_local(self, split: DataSplit, most: int) -> int | None:
        """Count the problems of ``split``, up to ``most``, without a download; None where that would take the hub.

        Raises UserError as :meth:`load` does.
        """
        if self.is_generated:
            return most
        if self.data_dir is None and not local_path(self.data).exists():
            return None
        return min(most, len(self.load(split)))

    def problems(self, split: DataSplit, count: int, seed: int) -> list[Problem]:
        """``count`` distinct problems of ``split``, the same for the same arguments.

        Raises UserError when the data cannot be read or holds no matching row. A generated set always has ``count``
        problems; a loaded one may have fewer.
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
        """Return whether the problems are made up here."""
        return self.data in self.sets and self.sets[self.data].generated

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        """``count`` distinct problems of ``split`` that are made up, the same for the same arguments."""
        raise NotImplementedError(f"{self.name} makes up no problems")

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """The problem that the fields of a row, or of the `problem` of a response, describe.

        Raises UserError, naming ``where`` and the field, for none.
        """
        raise NotImplementedError(f"{self.name} reads no problems")

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """The full text fed to the model, with the chat template applied where the tokenizer has one."""
        raise NotImplementedError(f"{self.name} writes no prompts")

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """Judge what the model wrote after the prompt; here as ``judge_many`` does.

        Pure: no state, no exception for any string, time linear in its length. ``truncated`` says that the token
        limit cut the response off.
        """
        return self.judge_many([problem], [response], [truncated])[0]

    def judge_many(
        self,
        problems: Sequence[Problem],
        responses: Sequence[str],
        truncated: Sequence[bool],
        token_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[Verdict]:
        """The verdict on each response, in order: those that ``judge`` would give.

        Args:
            token_ids: the tokens of each response, for judges that look at them; None = nobody knows them.
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
        """Begin to judge responses that come one after another, in other processes; None where this one judges."""
        return None

    def same_answers(self, answers: Sequence[Sequence[str]]) -> list[dict[str, str]]:
        """Return which wrong answers vote together, by the equality that verdicts go by; here those of one spelling.

        Args:
            answers: of each problem, the spellings in the order of its samples.
        Returns:
            For each problem: the first spelling that an answer equals, for answers that have another.
        """
        return [{} for _ in answers]

    def with_workers(self, workers: int) -> Self:
        """Return the task with that many processes that judge, where it is ``pooled``."""
        return self

    def solutions(self, problem: Problem) -> Iterator[str] | None:
        """Return responses to the problem's prompt that ``judge`` finds correct, for supervised fine-tuning to imitate.

        At least one, finitely many, always the same; None without any. Raises UserError when the problem does not hold
        enough to work it out.
        """
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in sorted(value.items())}
    return list(value) if isinstance(value, tuple) else value


def prompt_ids(task: Task, problem: Problem, tokenizer: Any) -> list[int]:
    """Token ids of a problem's prompt. The prompt's text says where special tokens go, so none are added.

    Raises UserError where the task sets variables of a chat template that the model has not.
    """
    check_template_options(task.chat_template_kwargs, tokenizer)
    return list(tokenizer(task.prompt(problem, tokenizer), add_special_tokens=False)["input_ids"])


def unread_share(prompts: Sequence[Sequence[int]], tokenizer: Any) -> float:
    """The share of the prompts' tokens that stand for what the tokenizer does not know; 0 where it knows every text."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    count = sum(map(len, prompts))
    if unknown is None or not count:
        return 0.0
    return sum(int(token == unknown) for prompt in prompts for token in prompt) / count


def response_text(tokenizer: Any, token_ids: Sequence[int], stops: Collection[int]) -> str:
    """The text of a completion as judges read it: special tokens kept, but not a closing one of ``stops``.

    Judges look for tags such as ``<think>``, which some tokenizers hold as special tokens. Rollouts, evaluations and
    trainer classes all have it from here.

    Args:
        stops: the ids that end a completion (``models.load.stop_ids``): the tokenizer's, and the generation config's.
    """
    ids = list(token_ids)
    if ids and ids[-1] in stops:
        ids.pop()
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def vote(response: str) -> str | None:
    r"""What majority votes count: the last <answer> block, the last \boxed, or the last line; None for nothing."""
    answer = last_tagged(response)
    answer = boxed_answer(response) if answer is None else answer
    lines = response.strip().splitlines() if answer is None else [answer]
    return " ".join(lines[-1].split()) or None if lines else None
