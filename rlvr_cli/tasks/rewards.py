"""Reward functions of the user's own: each in a worker process of its own, with a deadline and a memory limit."""

from __future__ import annotations

import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

from pydantic import Field

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.own_code import OwnFile, read_own_file, shown
from rlvr_cli.core.terminal import tell
from rlvr_cli.tasks.problem import Problem, Verdict
from rlvr_cli.workers.pool import Died, Judge, Late, Limits, NoAnswer, Pool
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
_TOLD = 3
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


def why(error: NoAnswer, file: str, name: str, limits: Limits, seconds: float | None = None) -> RewardFailure:
    """Why a worker gave no answer.

    Args:
        file, name: what was called. seconds: how long it had, where those were not the limits'.
    """
    if isinstance(error, Late):
        said = f"{name} took more than {limits.seconds if seconds is None else seconds:g} s and was ended"
        said = f"took more than {limits.loading:g} s to load" if error.loading else said
        return RewardFailure("timeout", f"{file}: {said} (task.reward_timeout)")
    if isinstance(error, Died):
        return RewardFailure("died", f"{file}: {name}: {error}")
    said = str(error)
    memory = f" (task.reward_memory={limits.memory_mib} MiB)" if "MemoryError" in said else ""
    # What was raised names the file already, with its line.
    path = file.removeprefix(_KEY)
    where = file.removesuffix(path) if said.startswith(path) else f"{file}: {name}: "
    return RewardFailure("error", f"{where}{said}{memory}")


class Told:
    """Failures that were said on standard error: the first few different sentences, each once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, said: str, rest: str = "") -> None:
        """Say one, where it is new."""
        if said not in self._told and len(self._told) < _TOLD:
            self._told.add(said)
            tell(f"{said}{rest}.")


def account(
    failed: Sequence[tuple[int, RewardFailure]], count: int, where: Callable[[int], str], share: float, told: Told
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
        told.tell(failure.said, f" ({where(row)}). {left}")


@dataclass
class RewardFunction:
    """A function of the user's: its file, its name there, its worker, and what its part of the reward is called."""

    path: Path
    name: str
    pool: Pool
    told: Told = field(default_factory=Told)

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """What its worker reports. Raises UserError where the file or the function is not as it must be."""
        try:
            found: Mapping[str, Any] = self.pool.submit(None).result()
        except NoAnswer as error:
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

        Raises NoAnswer where it gave none, and RunError where it gave no list, or one of another length.
        """
        found = said.result()
        if isinstance(found, list):
            found = {"values": found, "logged": {}}
        if "wrong" in found:
            raise RunError(f"{_KEY}{self.path}: {self.name} returned {found['wrong']}")
        values = (self._wrong(value["wrong"]) if isinstance(value, dict) else value for value in found["values"])
        return Values(values, found["logged"])

    def one_by_one(self, columns: Mapping[str, Sequence[Any]], count: int, error: NoAnswer, most: float) -> Values:
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
            except NoAnswer as again:
                found.append(self.failure(again, alone))
        return Values(found, logged)

    def failure(self, error: NoAnswer, seconds: float | None = None) -> RewardFailure:
        """The failure of a call without values; ``seconds``: how long it had."""
        return why(error, f"{_KEY}{self.path}", self.name, self.pool.limits, seconds)

    def _wrong(self, said: str) -> RewardFailure:
        wanted = f"a number from -{LARGEST_REWARD:g} to {LARGEST_REWARD:g} is needed, or None where it does not apply"
        return RewardFailure("error", f"{_KEY}{self.path}: {self.name} returned {said} for a completion; {wanted}")


# By the digest and the name of the file: as it was read, or as a configuration has its copy.
_SOURCES: dict[tuple[str, str], OwnFile] = {}


def keep_source(source: OwnFile) -> str:
    """Have rewards that name the file with its digest be of this text; the digest."""
    _SOURCES[source.code, Path(source.file).name] = source
    return source.code


def reward_source(written: str) -> OwnFile:
    """The file of ``FILE.py:FUNCTION@DIGEST``: the copy that the configuration has, else the file itself.

    Raises UserError where there is none of that digest.
    """
    found = REWARD.fullmatch(written)
    assert found is not None, written
    path, digest = local_path(found["file"]), found["digest"] or ""
    if (digest, path.name) in _SOURCES:
        return _SOURCES[digest, path.name]
    source = read_own_file(path, "reward")
    if digest not in ("", source.code):
        raise UserError(
            f"{path}: has changed since this reward was recorded (SHA-256 {digest}... then, "
            f"{source.code}... now), and there is no copy of the earlier file. Leave out @{digest} to use the file as "
            "it is."
        )
    return source


def reward_function(written: str, timeout: float, memory_mib: int) -> RewardFunction:
    """The function that ``FILE.py:FUNCTION@DIGEST`` names; its worker is started by the first call."""
    key = (written, timeout, memory_mib)
    if key in _FUNCTIONS:
        _FUNCTIONS.move_to_end(key)
        return _FUNCTIONS[key]
    found = REWARD.fullmatch(written)
    assert found is not None, written
    source = reward_source(written)
    path = Path(shown(source.file))
    settings = {"source": vars(source), "name": found["name"]}
    judge = Judge("rlvr_cli.workers.reward:ready", settings, what=f"runs {path}")
    pool = Pool(judge, Limits(timeout, memory_mib=memory_mib))
    _FUNCTIONS[key] = RewardFunction(path, found["name"], pool)
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
        except NoAnswer as error:
            failure = one.failure(error)
            values = Values([failure], {}) if count == 1 else one.one_by_one(columns, count, error, share * count)
            if not any(isinstance(value, RewardFailure) for value in values):
                one.told.tell(
                    f"{failure.said}. That was for all {count} completions at once; each alone has its reward"
                )
        failed = [(row, value) for row, value in enumerate(values) if isinstance(value, RewardFailure)]
        account(failed, count, where, share, one.told)
        found.append(values)
    recorded = Counter(name for values in found for name in values.logged)
    twice = [name for name, times in recorded.items() if times > 1]
    if twice:
        raise RunError(f"task.reward: several functions record {', '.join(twice)}. Give each a name of its own.")
    return found


class InWorkers:
    """Responses that are judged in worker processes, each a job of its own, while others are still to come.

    Args:
        job: of a problem, a response and whether that was cut off.
        verdict: of the response and the job's answer. failure: of none.
        share: of the responses, the most that may fail.
        whose: tells one judge from another: what was told of it, and the parts of its verdicts.
    """

    def __init__(
        self,
        pool: Pool,
        job: Callable[[Problem, str, bool], Any],
        verdict: Callable[[str, Any], Verdict],
        failure: Callable[[NoAnswer], RewardFailure],
        share: float,
        whose: str,
    ) -> None:
        self._pool, self._job, self._verdict, self._failure = pool, job, verdict, failure
        self._share, self._whose = share, whose
        self._rows: list[tuple[Problem, str, Future[Any]]] = []

    def add(self, problem: Problem, response: str, *, truncated: bool = False) -> None:
        """Have a response judged."""
        self._rows.append((problem, response, self._pool.submit(self._job(problem, response, truncated))))

    def verdicts(self) -> list[Verdict]:
        """Raises RunError where more than the share of them could not be had."""
        found = [self._said(response, said) for _, response, said in self._rows]
        failed = [(row, one) for row, one in enumerate(found) if isinstance(one, RewardFailure)]
        account(failed, len(found), self._where, self._share, _TOLD_OF.setdefault(self._whose, Told()))
        good = next((one for one in found if isinstance(one, Verdict)), None)
        if good is not None:
            _PARTS_OF[self._whose] = tuple(good.parts)
        parts = dict.fromkeys(_PARTS_OF.get(self._whose, ()), 0.0)
        return [
            Verdict(0.0, dict(parts), False, None, one.reason, scorable=False)
            if isinstance(one, RewardFailure)
            else one
            for one in found
        ]

    def _said(self, response: str, said: Future[Any]) -> Verdict | RewardFailure:
        try:
            return self._verdict(response, said.result())
        except NoAnswer as error:
            failure = self._failure(error)
            if error.loading:
                raise RunError(f"{failure.said}.") from None
            return failure

    def _where(self, row: int) -> str:
        problem, response, _ = self._rows[row]
        return f"problem {problem.id}, {problem.question[:_SHOWN]!r}; response {response[:_SHOWN]!r}"

    def __enter__(self) -> InWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, _, said in self._rows:
            said.cancel()


_TOLD_OF: dict[str, Told] = {}
_PARTS_OF: dict[str, tuple[str, ...]] = {}
