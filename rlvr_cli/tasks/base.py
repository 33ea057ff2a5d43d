"""What a task is: problems, their prompts, and a judge for responses. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, runtime_checkable

Split = Literal["train", "dev", "test"]

# How many of a set's prompts are looked at before a model is trained or evaluated on them.
PROMPTS_MEASURED = 256
# Draws the held-out problems, which are the same for every run and evaluation.
HELD_OUT_SEED = 0
# Shares of unknown tokens in prompts: from the first on a training is refused, from the second on one is warned. A real
# tokenizer may not know a rare sign; the lab's knows hardly a word of another task than its own.
UNREADABLE, HARDLY_READABLE = 0.5, 0.01


@dataclass(frozen=True)
class Problem:
    """One problem with everything that writing its prompt and judging a response need.

    ``data`` holds JSON values only. ``subgroup`` names the row of the accuracy table ("3 people"). Problems of equal
    ``structure`` differ in names and wording only; None means that the task knows no such relation.
    """

    id: str
    question: str
    data: dict[str, Any]
    subgroup: str
    structure: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What the judge says of a response.

    ``reward`` is the sum of ``parts``, whose keys are the same for every verdict of a task. ``answer`` is the extracted
    answer in a canonical spelling, the thing that majority votes count; None when there is none. ``reason`` is one of
    the task's ``reasons``. ``scorable`` is False where the judge cannot tell right from wrong, as when it ran out of
    time: such a response has no part in training, whatever ``reward`` says, and ``correct`` is False.
    """

    reward: float
    parts: dict[str, float]
    correct: bool
    answer: str | None
    reason: str
    scorable: bool = True


class Task(Protocol):
    """Where problems come from, how a prompt is written and how a response is judged."""

    @property
    def name(self) -> str:
        """The task's name, which is also the benchmark's in evaluation folders."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every reason that ``judge`` can give."""

    @property
    def reward_range(self) -> tuple[float, float]:
        """The lowest and the highest reward that ``judge`` can give; between them a flipped reward is mirrored."""

    @property
    def settings(self) -> dict[str, Any]:
        """The JSON values that decide problems, prompts and verdicts; evaluations record and compare them."""

    def problems(self, split: Split, count: int, seed: int) -> list[Problem]:
        """``count`` distinct problems of ``split``, the same for the same arguments.

        Raises UserError when the data cannot be read or holds no matching row. A generated set always has ``count``
        problems; a loaded one may have fewer.
        """

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """The full text fed to the model, with the chat template applied where the tokenizer has one."""

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """Judge what the model wrote after the prompt.

        Pure: no state, no exception for any string, time linear in its length. ``truncated`` says that the token
        limit cut the response off.
        """


@runtime_checkable
class JudgesMany(Protocol):
    """A task that judges many responses in less time together than one by one."""

    def judge_many(
        self, problems: Sequence[Problem], responses: Sequence[str], truncated: Sequence[bool]
    ) -> list[Verdict]:
        """The verdict on each response, in order: those that ``judge`` would give."""


class Judging(Protocol):
    """Responses that are judged while others are still to come. A context manager: it gives up what has not begun."""

    def add(self, problem: Problem, response: str, *, truncated: bool = False) -> None:
        """Have a response judged, without waiting for it."""

    def verdicts(self) -> list[Verdict]:
        """The verdict on each response, in the order in which they were added: those that ``judge`` would give."""

    def __enter__(self) -> Judging: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class JudgesBeside(Protocol):
    """A task that judges in other processes, and so beside whatever this one does."""

    def judging(self) -> Judging:
        """Begin to judge responses that come one after another."""


@runtime_checkable
class RewardsFormat(Protocol):
    """A task whose reward may have a part `format`: for how a response is written, not for what it says."""

    @property
    def format_range(self) -> tuple[float, float] | None:
        """The lowest and the highest value of that part; None where the reward as configured has none."""


@runtime_checkable
class WorkedSolutions(Protocol):
    """A task that can solve its own problems; supervised fine-tuning imitates what it writes."""

    def solutions(self, problem: Problem) -> Iterator[str]:
        """Responses to the problem's prompt that ``judge`` finds correct: at least one, finitely many, always the same.

        Raises UserError when the problem does not hold enough to work it out.
        """


def judge_all(
    task: Task, problems: Sequence[Problem], responses: Sequence[str], truncated: Sequence[bool]
) -> list[Verdict]:
    """The verdict on each response, in order; in one call where the task judges many at once."""
    if isinstance(task, JudgesMany):
        return task.judge_many(problems, responses, truncated)
    return [
        task.judge(problem, response, truncated=cut)
        for problem, response, cut in zip(problems, responses, truncated, strict=True)
    ]


def prompt_ids(task: Task, problem: Problem, tokenizer: Any) -> list[int]:
    """Token ids of a problem's prompt. The prompt's text says where special tokens go, so none are added."""
    return list(tokenizer(task.prompt(problem, tokenizer), add_special_tokens=False)["input_ids"])


def unread_share(prompts: Sequence[Sequence[int]], tokenizer: Any) -> float:
    """The share of the prompts' tokens that stand for what the tokenizer does not know; 0 where it knows every text."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    count = sum(map(len, prompts))
    if unknown is None or not count:
        return 0.0
    return sum(int(token == unknown) for prompt in prompts for token in prompt) / count


def response_text(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """The text of a completion as judges read it: special tokens kept, but not a closing end-of-sequence token.

    Judges look for tags such as ``<think>``, which some tokenizers hold as special tokens.
    """
    ids = list(token_ids)
    if ids and ids[-1] == tokenizer.eos_token_id:
        ids.pop()
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
