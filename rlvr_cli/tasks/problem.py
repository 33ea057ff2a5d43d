"""Problems, verdicts on responses, and named data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean

Split = Literal["train", "dev", "test"]
DataSplit = Literal["train", "dev", "test", "all"]
Rule = Literal["paper", "strict"]
# The reason of a verdict on a readable but incorrect answer.
WRONG = "wrong"


@dataclass(frozen=True)
class DataSet:
    """A named set of problems.

    Attributes:
        summary: a line for the user.
        files: split (train, test) -> file or folder in a data folder, without `.jsonl` or `.jsonl.gz`; {} = generated.
            hub: the hub data set with these splits; None = not on the hub.
        config: its configuration, or several; None = the default.
        hub_splits: our split -> the hub's, or a file, if they differ.
        repeated: whether the hub has duplicate rows.
        licence: as stated by its publishers.
        size: the published number of test problems (0: unknown), on which a benchmark's number of samples depends.
        keys: a benchmark's keys of the task's section.
        length: a benchmark's completion limit in tokens, and its source; None = by size.
        sampling: how a benchmark's authors sample it: values and `source` of its setting, in place of those by size.
        task: the task's name, set by the registry.
    """

    summary: str
    files: Mapping[str, str]
    hub: str | None
    licence: str
    size: int = 0
    keys: Mapping[str, Any] = field(default_factory=dict)
    length: tuple[int, str] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    task: str = ""
    config: str | tuple[str, ...] | None = None
    hub_splits: Mapping[str, str] = field(default_factory=dict)
    repeated: bool = False

    @property
    def generated(self) -> bool:
        """True for generated problems: any number, in train, dev and test."""
        return not self.files


def generated_set(summary: str) -> DataSet:
    return DataSet(summary, {}, None, "that of this project")


@dataclass(frozen=True)
class Problem:
    """A problem with the data of its prompt and its judge.

    ``data`` holds JSON values only. ``subgroup`` is the row of the accuracy table ("3 people"). Problems of equal
    ``structure`` differ in names and wording only; None = undefined for the task.
    """

    id: str
    question: str
    data: dict[str, Any]
    subgroup: str
    structure: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The problem as a row of a data file or the `problem` of a response to score."""
        return {"id": self.id, "question": self.question, **self.data}


@dataclass(frozen=True)
class Verdict:
    """The judge's verdict on a response.

    ``reward`` is the sum of the components ``parts``; one that is missing does not apply, and adds 0. ``answer`` is the
    extracted answer in a canonical spelling, for majority votes, or None; the task may treat other spellings as
    equivalent (``group_answers``). ``reason`` is one of the task's ``reasons``. ``scorable`` is False if the judge
    cannot decide, as after a timeout: the response is excluded from training, and ``correct`` is False. ``logged``:
    further values recorded with the response.
    """

    reward: float
    parts: dict[str, float]
    correct: bool
    answer: str | None
    reason: str
    scorable: bool = True
    logged: Mapping[str, str | float | bool | None] = field(default_factory=dict)


class JudgeSession:
    """Judges responses concurrently with sampling."""

    def add(self, problem: Problem, response: str, *, truncated: bool = False) -> None:
        """Start judging a response."""
        raise NotImplementedError

    def verdicts(self) -> list[Verdict]:
        """Wait for the verdicts, in the order of ``add``."""
        raise NotImplementedError

    def close(self) -> None:
        """Cancel unstarted jobs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MissingFields(UserError):
    """A row, or a stored response's problem, lacks fields.

    ``needed``: the requirement, as `a row needs nums (the numbers) and target`. ``fields``: the row.
    """

    def __init__(self, where: str, missing: Sequence[str], needed: str, fields: Mapping[str, Any]) -> None:
        self.missing = tuple(missing)
        names = [str(name) for name in fields if name not in _DEFAULT_FIELDS]
        has = f" It has {', '.join(names)}." if names else ""
        hints = "".join(did_you_mean(name, names) for name in missing)
        super().__init__(f"{where}: no field {', '.join(missing)}; {needed}.{has}{hints}")


# With fewer problems the confidence interval of an accuracy spans a third of its range or more.
FEW_PROBLEMS = 30


# Fields that every row gets by default.
_DEFAULT_FIELDS = ("id", "subgroup")
