"""The user's reward functions, each in its worker process with a deadline and a memory limit."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rlvr_cli.core import user_code
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.terminal import tell
from rlvr_cli.core.user_code import UserFile, find_user_file, shown
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.workers.pool import JobError, JobTimeout, Limits, Pool, Target, WorkerDied, shared_pool
from rlvr_cli.workers.reward import NUMBER

# Limits of user code, as keys of every task that has some. They change no verdict of working code.
Timeout = Annotated[float, Field(gt=0.0, le=86_400.0)]
MemoryMiB = Annotated[int, Field(ge=256, le=10_000_000)]
LIMIT_KEYS = ("reward_timeout", "reward_memory", "reward_failures", "reward_workers")
# `FILE.py:FUNCTION`, in the configuration of a run with `@` and the first digits of the file's SHA-256.
REWARD = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)(?:@(?P<digest>[0-9a-f]{12}))?")
# Failures of one function that are printed; the others are counted.
_NOTICES = 3
# Share of a call's deadline for a single completion.
_ALONE = 0.1
# Characters of a problem and of a response in messages.
_SHOWN = 200
# Calls and completions without any number after which the command ends.
_SILENT_CALLS, _SILENT_ROWS = 3, 32


@dataclass(frozen=True)
class RewardFailure:
    """A completion without a value.

    Attributes:
        reason: error, timeout or died. message: with the file and, if known, the line.
    """

    reason: str
    message: str


Value = float | RewardFailure | None


@dataclass(frozen=True)
class Rewards:
    """The values of a call's rows, and the columns recorded by `log_extra` and `log_metric`."""

    values: Sequence[Value]
    logged: Mapping[str, Sequence[Any]]


def worker_limits(timeout: float, memory_mib: int) -> Limits:
    """Return the limits of a worker, which itself ends a long import earlier and names the line."""
    return Limits(timeout, memory_mib=memory_mib, load_seconds=max(timeout, user_code.LOADING) + 15)


def failure_of(error: JobError, where: str, limits: Limits, seconds: float | None = None) -> RewardFailure:
    """Return the failure of a job.

    Args:
        where: the function, as `my_rewards.py: accuracy`. seconds: its deadline, if not that of ``limits``.
    """
    if isinstance(error, JobTimeout):
        took = f"{limits.seconds if seconds is None else seconds:g} s and was ended"
        took = f"{limits.loading:g} s to load" if error.loading else took
        return RewardFailure("timeout", f"{where} took more than {took} (task.reward_timeout)")
    if isinstance(error, WorkerDied):
        return RewardFailure("died", f"{where}: {error}")
    memory = f" (task.reward_memory={limits.memory_mib} MiB)" if "MemoryError" in str(error) else ""
    return RewardFailure("error", f"{error}{memory}")


class Failures:
    """The failures of user code in one task: the first few are printed, too many end the command."""

    def __init__(self) -> None:
        self._printed, self._most = set[str](), 0

    def warn_once(self, message: str, more: str = "") -> None:
        """Print a message, the first time it occurs."""
        if message not in self._printed and len(self._printed) < _NOTICES:
            self._printed.add(message)
            tell(f"{message}{more}.")

    def check_failure_rate(self, values: Sequence[Any], row_text: Callable[[int], str], share: float) -> None:
        """Print the failures among ``values``.

        Args:
            row_text: describes a row in a message.
            share: the largest share of failures, in rows of the largest call so far; unless it is 0, one of several
                rows always may fail. Later calls may have few rows, as the groups that dynamic sampling replaces.
        Raises:
            RunError: more failed.
        """
        failed = [(row, value) for row, value in enumerate(values) if isinstance(value, RewardFailure)]
        summary = f"{len(failed)} of {len(values)} completions have no reward"
        self._most = max(self._most, len(values))
        least = 1 if share and self._most > 1 else 0
        if len(failed) > max(share * self._most, least):
            row, first = failed[0]
            more = f". {summary}; more than {share:.0%} end the run (task.reward_failures)" if share else ""
            raise RunError(f"{first.message} ({row_text(row)}){more}")
        for row, failure in failed:
            self.warn_once(failure.message, f" ({row_text(row)}). {summary}; up to {share:.0%} are left out")


def row_text(problem: Problem, response: str) -> str:
    """Describe a row in a message."""
    return f"problem {problem.id}, {problem.question[:_SHOWN]!r}; response {response[:_SHOWN]!r}"


@dataclass(frozen=True)
class RewardFunction:
    """A reward function of the user's.

    Attributes:
        where: its name in messages: `my_rewards.py: accuracy`.
    """

    where: str
    target: Target
    limits: Limits

    @property
    def pool(self) -> Pool:
        """The function's worker, which the first call starts."""
        return shared_pool(self.target, self.limits)

    def begin(self, columns: Mapping[str, Sequence[Any]], count: int, seconds: float | None = None) -> Future[Any]:
        """Start computing the values of ``count`` rows."""
        return self.pool.submit({"count": count, "columns": columns}, seconds)

    def read(self, future: Future[Any]) -> Rewards:
        """Return the values of a call.

        Raises JobError where it failed, and RunError where it returned no list, or one of another length.
        """
        answer = future.result()
        if "wrong" in answer:
            raise RunError(f"task.reward: {self.where} {answer['wrong']}")
        return Rewards([self._value(value) for value in answer["values"]], answer["logged"])

    def _value(self, value: Any) -> Value:
        if not isinstance(value, dict):
            return value  # type: ignore[no-any-return]
        wanted = f"{NUMBER}, or None where it does not apply"
        return RewardFailure("error", f"task.reward: {self.where} must return {wanted}; got {value['wrong']}")

    def one_by_one(self, columns: Mapping[str, Sequence[Any]], count: int, failure: RewardFailure) -> Rewards:
        """Return the values of separate calls for each row, after a call for all that failed.

        They share the deadline of one call; the remaining rows have the failure of the first.
        """
        until = time.monotonic() + self.limits.seconds
        alone = max(1.0, _ALONE * self.limits.seconds)
        values: list[Value] = [failure] * count
        logged: dict[str, list[Any]] = {}
        for row in range(count):
            if time.monotonic() > until:
                break
            try:
                result = self.read(self.begin({name: [column[row]] for name, column in columns.items()}, 1, alone))
            except JobError as error:
                values[row] = self.failure(error, alone)
                continue
            values[row] = result.values[0]
            for name, recorded in result.logged.items():
                logged.setdefault(name, [None] * count)[row] = recorded[0]
        return Rewards(values, logged)

    def failure(self, error: JobError, seconds: float | None = None) -> RewardFailure:
        """Return the failure of a call; ``seconds``: its deadline, if not that of the limits."""
        failure = failure_of(error, self.where, self.limits, seconds)
        return RewardFailure(failure.reason, f"task.reward: {failure.message}")


def reward_file(written: str, folder: Path | None = None) -> UserFile:
    """Return the file of ``FILE.py:FUNCTION@DIGEST``. Raises UserError if no file has that digest."""
    file, _, function = written.rpartition(":")
    _, at, digest = function.partition("@")
    return find_user_file(f"{file}{at}{digest}", folder)


def reward_function(written: str, timeout: float, memory_mib: int) -> RewardFunction:
    """Return the function of ``FILE.py:FUNCTION@DIGEST``."""
    recorded = "@" in written.rpartition(":")[2]
    return _function(written if recorded else f"{written}@{reward_file(written).digest}", timeout, memory_mib)


# A file is read once: it may be edited during a training.
@lru_cache(maxsize=64)
def _function(written: str, timeout: float, memory_mib: int) -> RewardFunction:
    file, name = reward_file(written), written.rpartition(":")[2].partition("@")[0]
    limits = worker_limits(timeout, memory_mib)
    settings = {"file": file.as_json(), "name": name, "seconds": limits.loading - 15}
    path = shown(file.path)
    return RewardFunction(
        f"{path}: {name}", Target("rlvr_cli.workers.reward:ready", settings, purpose=f"runs {path}"), limits
    )


class RewardFunctions:
    """The reward functions of a task, and the failures reported so far."""

    def __init__(self, functions: Sequence[RewardFunction]) -> None:
        self.functions = functions
        self.failures = Failures()
        self._calls = self._rows = 0
        self._silent = True

    def load(self) -> None:
        """Import the files. Raises UserError with every problem."""
        problems = []
        for function, loaded in [(function, function.pool.submit(None)) for function in self.functions]:
            try:
                loaded.result()
            except JobError as error:
                problems.append(function.failure(error).message)
        if problems:
            raise UserError(problems)

    def rewards(
        self, columns: Mapping[str, Sequence[Any]], count: int, row_text: Callable[[int], str], share: float
    ) -> list[Rewards]:
        """Return the rewards of each function; all functions run concurrently.

        After a call that fails, each row is called separately.

        Args:
            row_text: describes a row in a message.
            share: the largest share of rows that may fail.
        Raises:
            RunError: more failed, or a function has another signature or type of result.
        """
        futures = [function.begin(columns, count) for function in self.functions]
        results = []
        for function, future in zip(self.functions, futures, strict=True):
            try:
                result = function.read(future)
            except JobError as error:
                failure = function.failure(error)
                result = Rewards([failure], {})
                if count > 1:
                    result = function.one_by_one(columns, count, failure)
                    if not any(isinstance(value, RewardFailure) for value in result.values):
                        every = f"The call for all {count} completions failed; separate calls succeeded"
                        self.failures.warn_once(failure.message, f". {every}")
            self.failures.check_failure_rate(result.values, row_text, share)
            results.append(result)
        recorded = Counter(name for result in results for name in result.logged)
        if twice := [name for name, times in recorded.items() if times > 1]:
            raise RunError(f"task.reward: several functions record {', '.join(twice)}. Give each a different name.")
        return results

    def check_silence(self, results: Sequence[Rewards], count: int) -> None:
        """Warn when no function has returned a number yet. Raises RunError after several such calls."""
        self._silent &= all(value is None for result in results for value in result.values)
        if not self._silent:
            return
        self._calls, self._rows = self._calls + 1, self._rows + count
        names = ", ".join(function.where for function in self.functions)
        message = f"task.reward: {names} returned None for each of {self._rows} completions so far"
        if self._calls >= _SILENT_CALLS and self._rows >= _SILENT_ROWS:
            raise RunError(f"{message}, so there is nothing to learn from. None means that a reward does not apply.")
        if self._calls == 1:
            tell(f"{message}: none of them can be learned from.")
