"""A problem, what a judge says of a response to it, and the sets of problems that have a name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean

Split = Literal["train", "dev", "test"]
DataSplit = Literal["train", "dev", "test", "all"]
Rule = Literal["paper", "strict"]
# Of the reasons of verdicts: a readable answer that is not the right one.
WRONG = "wrong"


@dataclass(frozen=True)
class DataSet:
    """A set of problems that has a name.

    Attributes:
        what: one line for people.
        files: split (train, test) -> file or folder inside a data folder, without `.jsonl` or `.jsonl.gz`. Generated
            problems have none.
        hub: the hub data set with these splits; None: it is not on the hub.
        config: its configuration; None = the default.
        hub_splits: our split -> the hub's, or the name of a file, where that is another.
        repeated: its rows occur many times on the hub.
        licence: of the origin, as its publishers state it.
        size: its test problems, as published (0: unknown), which decide the samples where it is named as a benchmark.
        keys: of the task's section, where it is named as a benchmark.
        length: longest completion where it is named as a benchmark, and where that number is from; None = by size.
        task: the task's name; the registry fills it in.
    """

    what: str
    files: Mapping[str, str]
    hub: str | None
    licence: str
    size: int = 0
    keys: Mapping[str, Any] = field(default_factory=dict)
    length: tuple[int, str] | None = None
    task: str = ""
    config: str | None = None
    hub_splits: Mapping[str, str] = field(default_factory=dict)
    repeated: bool = False

    @property
    def generated(self) -> bool:
        """Return whether the project makes these problems up: any number, with train, dev and test of their own."""
        return not self.files


def made_here(what: str) -> DataSet:
    """Problems that the project makes up."""
    return DataSet(what, {}, None, "that of this project")


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

    @property
    def fields(self) -> dict[str, Any]:
        """The problem as a row of a data file, and as the `problem` of a response to score."""
        return {"id": self.id, "question": self.question, **self.data}


@dataclass(frozen=True)
class Verdict:
    """What the judge says of a response.

    ``reward`` is the sum of ``parts``; a part that a verdict lacks is 0 for it. ``answer`` is the extracted
    answer in a canonical spelling, the thing that majority votes count; None when there is none. ``reason`` is one of
    the task's ``reasons``. Answers that the task finds equal in another spelling vote together too (``same_answers``).
    ``scorable`` is False where the judge cannot tell right from wrong, as when it ran out of
    time: such a response has no part in training, whatever ``reward`` says, and ``correct`` is False. ``logged`` are
    values that are recorded with the response and decide nothing.
    """

    reward: float
    parts: dict[str, float]
    correct: bool
    answer: str | None
    reason: str
    scorable: bool = True
    logged: Mapping[str, str | float | bool | None] = field(default_factory=dict)


class Judging:
    """Judge responses while others are still to come."""

    def add(self, problem: Problem, response: str, *, truncated: bool = False) -> None:
        """Have a response judged, without waiting for it."""
        raise NotImplementedError

    def verdicts(self) -> list[Verdict]:
        """Return the verdict on each response, in the order in which they were added: those that ``judge`` gives."""
        raise NotImplementedError

    def close(self) -> None:
        """Give up what has not begun."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MissingFields(UserError):
    """A row, or the problem of a response, lacks fields.

    Args:
        where: its place.
        missing: the fields' names.
        needed: what there must be: `a row needs nums (the numbers) and target`.
        fields: what it has.
    """

    def __init__(self, where: str, missing: Sequence[str], needed: str, fields: Mapping[str, Any]) -> None:
        self.missing = tuple(missing)
        names = [str(name) for name in fields if name not in _GIVEN]
        has = f" It has {', '.join(names)}." if names else ""
        hints = "".join(did_you_mean(name, names) for name in missing)
        super().__init__(f"{where}: no field {', '.join(missing)}; {needed}.{has}{hints}")


# Fewer problems than these leave an accuracy open by a third and more of its range.
FEW = 30


def wide(count: int) -> str:
    """A remark on ``count`` test rows where they are few; else nothing."""
    return f"{count} test rows make wide intervals" if 0 < count < FEW else ""


# Fields that every row gets where it has none.
_GIVEN = ("id", "subgroup")


def coin(problem_id: str, response: str) -> bool:
    """A fair coin, fixed for problem and response: the reward of the control `task.reward: random`.

    Whatever is learned from it has nothing to do with the answer.
    """
    return bool(hashlib.sha256(f"{problem_id}\n{response}".encode("utf-8", "surrogatepass")).digest()[0] % 2)
