"""Reward functions of the user's: each in a worker process of its own, with a deadline and a memory limit."""

from __future__ import annotations

import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rlvr_cli.core import user_code
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.terminal import tell
from rlvr_cli.core.user_code import UserFile, find_user_file, shown
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.workers.pool import JobError, JobTimeout, Limits, Pool, Target, WorkerDied
from rlvr_cli.workers.reward import LARGEST_REWARD, LOGS

# What code of the user's may take: keys of every task that has some. They change no verdict of code that works.
Timeout = Annotated[float, Field(gt=0.0, le=86_400.0)]
MemoryMiB = Annotated[int, Field(ge=256, le=10_000_000)]
LIMIT_KEYS = ("reward_timeout", "reward_memory", "reward_failures", "reward_workers")
# `FILE.py:FUNCTION`, and after @ the digits of the file's SHA-256, which the configuration of a run has.
REWARD = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)(?:@(?P<digest>[0-9a-f]{12}))?")
# Workers of functions that are kept; those of a configuration that was left are ended.
_KEPT = 16
# Failures of one function that are shown; the others are counted.
_NOTICES = 3
# A completion alone may take this share of what a call may take.
_ALONE = 0.1
# Characters of a problem and of a response that messages show.
_SHOWN = 200
_KEY = "task.reward: "
# What TRL gives a reward function, and nobody can give here.
_NOT_GIVEN = {
    "trainer_state": "the state of TRL's trainer is given to no reward here, where evaluations judge as well",
    "environments": "there are no environments here",
}


@dataclass(frozen=True)
class RewardFailure:
    """A completion that a function has no value for.

    Attributes:
        reason: error, timeout or died. said: the sentence, with the function's file and line.
    """

    reason: str
    said: str


Value = float | RewardFailure | None


class Values(list[Value]):
    """The values of the rows of a call, and what the function recorded of each: `log_extra`, `log_metric`."""

    def __init__(self, values: Iterable[Value], logged: Mapping[str, Sequence[Any]]) -> None:
        super().__init__(values)
        self.logged = logged


def worker_limits(timeout: float, memory_mib: int) -> Limits:
    """Return the limits of a worker; the worker itself ends an import that takes long, and names the line, before."""
    return Limits(timeout, memory_mib=memory_mib, load_seconds=max(timeout, user_code.LOADING) + 15)


def why(error: JobError, file: str, name: str, limits: Limits, seconds: float | None = None) -> RewardFailure:
    """Why a worker gave no answer.

    Args:
        file, name: what was called. seconds: how long it had, where those were not the limits'.
    """
    if isinstance(error, JobTimeout):
        said = f"{name} took more than {limits.seconds if seconds is None else seconds:g} s and was ended"
        said = f"took more than {limits.loading:g} s to load" if error.loading else said
        return RewardFailure("timeout", f"{file}: {said} (task.reward_timeout)")
    if isinstance(error, WorkerDied):
        return RewardFailure("died", f"{file}: {name}: {error}")
    said = str(error)
    memory = f" (task.reward_memory={limits.memory_mib} MiB)" if "MemoryError" in said else ""
    # What was raised names the file already, with its line.
    path = file.removeprefix(_KEY)
    where = file.removesuffix(path) if said.startswith(path) else f"{file}: {name}: "
    return RewardFailure("error", f"{where}{said}{memory}")


class Notices:
    """Failures that were said on standard error: the first few different sentences, each once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, said: str, rest: str = "") -> None:
        """Say one, where it is new."""
        if said not in self._told and len(self._told) < _NOTICES:
            self._told.add(said)
            tell(f"{said}{rest}.")


def account(
    failed: Sequence[tuple[int, RewardFailure]], count: int, where: Callable[[int], str], share: float, notices: Notices
) -> None:
    """Tell the failures among ``count`` completions, and raise RunError where they are more than ``share`` of them.

    Args:
        where: what a row is, for people.
    """
    if len(failed) > share * count:
        row, first = failed[0]
        rest = ""
        if share:
            rest = (
                f". {len(failed)} of {count} completions have no reward for such a reason; more than {share:.0%} end "
                "the run (task.reward_failures)"
            )
        raise RunError(f"{first.said} ({where(row)}){rest}")
    for row, failure in failed:
        left = f"{len(failed)} of {count} completions have no reward; up to {share:.0%} are left out"
        notices.tell(failure.said, f" ({where(row)}). {left}")


def described(problem: Problem, response: str) -> str:
    """Describe a row in a message."""
    return f"problem {problem.id}, {problem.question[:_SHOWN]!r}; response {response[:_SHOWN]!r}"


@dataclass
class RewardFunction:
    """A function of the user's: its file, its name there, its worker, and what its part of the reward is called."""

    path: Path
    name: str
    pool: Pool
    notices: Notices = field(default_factory=Notices)

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """What its worker reports. Raises UserError where the file or the function is not as it must be."""
        try:
            found: Mapping[str, Any] = self.pool.submit(None).result()
        except JobError as error:
            raise UserError(self.failure(error).said.removeprefix(_KEY)) from None
        return found

    def unfit(self, columns: Sequence[str]) -> str | None:
        """What is wrong with its parameters, for rows of these columns."""
        wanted = [name for name in self.parameters["needed"] if name not in (*columns, *LOGS)]
        if not wanted:
            return None
        where = f"{self.path}: {self.name} wants {', '.join(wanted)}"
        for name in wanted:
            if name in _NOT_GIVEN:
                return f"{where}; {_NOT_GIVEN[name]}. Give {name} a default, or leave it out."
        return (
            f"{where}; it can have {', '.join(columns)}. Map a column of the data: task.columns={{{wanted[0]}: ...}}. "
            "Columns of timestamps or bytes are left out."
        )

    def begin(self, columns: Mapping[str, Sequence[Any]], count: int, seconds: float | None = None) -> Future[Any]:
        """The values of ``count`` rows, to come. It gets what it names; with ``**kwargs`` every column."""
        names = self.parameters["names"]
        given = {
            name: values
            for name, values in columns.items()
            if name in names or (self.parameters["any"] and name != "completion_ids")
        }
        return self.pool.submit({"count": count, "columns": given}, seconds)

    def read(self, said: Future[Any]) -> Values:
        """The values of a call that has begun.

        Raises JobError where it gave none, and RunError where it gave no list, or one of another length.
        """
        found = said.result()
        if isinstance(found, list):
            found = {"values": found, "logged": {}}
        if "wrong" in found:
            raise RunError(f"{_KEY}{self.path}: {self.name} returned {found['wrong']}")
        values = (self._wrong(value["wrong"]) if isinstance(value, dict) else value for value in found["values"])
        return Values(values, found["logged"])

    def one_by_one(self, columns: Mapping[str, Sequence[Any]], count: int, error: JobError, most: float) -> Values:
        """The value of each row alone, after a call for all of them that gave none.

        All together take as long as one call may; rows that are left then, and those after ``most`` failures, have the
        failure of the first call.
        """
        until = time.monotonic() + self.pool.limits.seconds
        alone = max(1.0, _ALONE * self.pool.limits.seconds)
        found: list[Value] = []
        logged: dict[str, list[Any]] = {}
        for row in range(count):
            failed = sum(isinstance(value, RewardFailure) for value in found)
            if time.monotonic() > until or failed > most:
                found.append(self.failure(error))
                continue
            try:
                one = {name: [values[row]] for name, values in columns.items()}
                value = self.read(self.begin(one, 1, alone))
                for name, recorded in value.logged.items():
                    logged.setdefault(name, [None] * count)[row] = recorded[0]
                found += value
            except JobError as again:
                found.append(self.failure(again, alone))
        return Values(found, logged)

    def failure(self, error: JobError, seconds: float | None = None) -> RewardFailure:
        """The failure of a call without values; ``seconds``: how long it had."""
        return why(error, f"{_KEY}{self.path}", self.name, self.pool.limits, seconds)

    def _wrong(self, said: str) -> RewardFailure:
        wanted = f"a number from -{LARGEST_REWARD:g} to {LARGEST_REWARD:g} is needed, or None where it does not apply"
        return RewardFailure("error", f"{_KEY}{self.path}: {self.name} returned {said} for a completion; {wanted}")


def reward_file(written: str) -> UserFile:
    """Return the file of ``FILE.py:FUNCTION@DIGEST``. Raises UserError where there is none of that digest."""
    match = REWARD.fullmatch(written)
    assert match is not None, written
    return find_user_file(match["file"] if match["digest"] is None else f"{match['file']}@{match['digest']}")


def reward_function(written: str, timeout: float, memory_mib: int) -> RewardFunction:
    """The function that ``FILE.py:FUNCTION@DIGEST`` names; its worker is started by the first call."""
    match = REWARD.fullmatch(written)
    assert match is not None, written
    if match["digest"] is None:
        written = f"{written}@{reward_file(written).digest}"
    key = (written, timeout, memory_mib)
    if key in _FUNCTIONS:
        _FUNCTIONS.move_to_end(key)
        return _FUNCTIONS[key]
    file = reward_file(written)
    path = Path(shown(file.path))
    limits = worker_limits(timeout, memory_mib)
    settings = {"file": file.as_json(), "name": match["name"], "seconds": limits.loading - 15}
    target = Target("rlvr_cli.workers.reward:ready", settings, what=f"runs {path}")
    pool = Pool(target, limits)
    _FUNCTIONS[key] = RewardFunction(path, match["name"], pool)
    while len(_FUNCTIONS) > _KEPT:
        _, oldest = _FUNCTIONS.popitem(last=False)
        oldest.pool.close()
    return _FUNCTIONS[key]


_FUNCTIONS: OrderedDict[tuple[str, float, int], RewardFunction] = OrderedDict()


def rewards(
    functions: Sequence[RewardFunction],
    columns: Mapping[str, Sequence[Any]],
    count: int,
    where: Callable[[int], str],
    share: float,
) -> list[Values]:
    """What each function gives each row; all functions work at the same time.

    A call that gives no values is made again for each row alone. The first failures of a function go to standard
    error.

    Args:
        where: what a row is, for people.
        share: of the rows, the most that may fail.
    Raises:
        RunError: more than that failed.
    """
    begun = [one.begin(columns, count) for one in functions]
    found: list[Values] = []
    for one, said in zip(functions, begun, strict=True):
        try:
            values = one.read(said)
        except JobError as error:
            failure = one.failure(error)
            values = Values([failure], {}) if count == 1 else one.one_by_one(columns, count, error, share * count)
            if not any(isinstance(value, RewardFailure) for value in values):
                one.notices.tell(
                    f"{failure.said}. That was for all {count} completions at once; each alone has its reward"
                )
        failed = [(row, value) for row, value in enumerate(values) if isinstance(value, RewardFailure)]
        account(failed, count, where, share, one.notices)
        found.append(values)
    recorded = Counter(name for values in found for name in values.logged)
    twice = [name for name, times in recorded.items() if times > 1]
    if twice:
        raise RunError(f"task.reward: several functions record {', '.join(twice)}. Give each a name of its own.")
    return found
