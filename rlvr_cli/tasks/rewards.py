"""The user's reward functions, each in a worker process with a timeout and a memory limit."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rlvr_cli.core import user_code
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.terminal import print_stderr
from rlvr_cli.core.user_code import UserFile, display_path, find_user_file
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.workers.pool import JobError, JobTimeout, Limits, Pool, Target, WorkerDied, shared_pool
from rlvr_cli.workers.reward import NUMBER

# Limits of user code: keys of every task that runs some. They do not change verdicts of working code.
Timeout = Annotated[float, Field(gt=0.0, le=86_400.0)]
MemoryMiB = Annotated[int, Field(ge=256, le=10_000_000)]
LIMIT_KEYS = ("reward_timeout", "reward_memory", "reward_failures", "reward_workers")
# `FILE.py:FUNCTION`; a run's configuration appends `@` and the first digits of the file's SHA-256.
REWARD = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)(?:@(?P<digest>[0-9a-f]{12}))?")
# `package.module:FUNCTION` or `package.module.FUNCTION`; a run's configuration appends `@package==version`.
INSTALLED = re.compile(
    r"(?P<file>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)[.:](?P<name>(?!py$)[A-Za-z_]\w*)(?:@(?P<package>[\w.-]+==[\w.+!-]+))?"
)
# Failures of a function that are printed; further ones are only counted.
_NOTICES = 3
# Timeout for a single completion, as a share of a call's.
_ALONE = 0.1
# Characters of a problem and of a response in messages.
_SHOWN = 200


@dataclass(frozen=True)
class RewardFailure:
    """The failure of a reward function on a completion.

    ``reason``: error, timeout or died. ``message``: with file and, if known, line.
    """

    reason: str
    message: str


Value = float | RewardFailure | None


@dataclass(frozen=True)
class Rewards:
    """The values of a call, per completion, and the columns recorded by `log_extra` and `log_metric`."""

    values: Sequence[Value]
    logged: Mapping[str, Sequence[Any]]


def worker_limits(timeout: float, memory_mib: int) -> Limits:
    """Return a worker's limits. Its load timeout exceeds that of the import, whose error names the line."""
    return Limits(timeout, memory_mib=memory_mib, loading=max(timeout, user_code.IMPORT_TIMEOUT) + 15)


def job_failure(error: JobError, where: str, limits: Limits, seconds: float | None = None) -> RewardFailure:
    if isinstance(error, JobTimeout):
        took = f"{limits.seconds if seconds is None else seconds:g} s and was killed"
        took = f"{limits.loading:g} s to load" if error.loading else took
        return RewardFailure("timeout", f"{where} took more than {took} (task.reward_timeout)")
    if isinstance(error, WorkerDied):
        return RewardFailure("died", f"{where}: {error}")
    memory = f" (task.reward_memory={limits.memory_mib} MiB)" if "MemoryError" in str(error) else ""
    return RewardFailure("error", f"{error}{memory}")


class Failures:
    """Counts failures of user code: prints the first few, and raises for too many."""

    def __init__(self) -> None:
        self._printed, self._most = set[str](), 0

    def warn_once(self, message: str, more: str = "") -> None:
        if message not in self._printed and len(self._printed) < _NOTICES:
            self._printed.add(message)
            print_stderr(f"{message}{more}.")

    def check_failure_rate(self, values: Sequence[Any], describe_row: Callable[[int], str], share: float) -> None:
        """Print the failures among ``values``; ``describe_row`` describes a row in a message.

        Raises RunError if more than ``share`` failed, relative to the largest call so far, since later calls may have
        few rows (groups replaced by dynamic sampling). Unless ``share`` is 0, a single row of several may always fail.
        """
        failed = [(row, value) for row, value in enumerate(values) if isinstance(value, RewardFailure)]
        summary = f"{len(failed)} of {len(values)} completions have no reward"
        self._most = max(self._most, len(values))
        least = 1 if share and self._most > 1 else 0
        if len(failed) > max(share * self._most, least):
            row, first = failed[0]
            more = f". {summary}; more than {share:.0%} end the run (task.reward_failures)" if share else ""
            raise RunError(f"{first.message} ({describe_row(row)}){more}")
        for row, failure in failed:
            self.warn_once(failure.message, f" ({describe_row(row)}). {summary}; up to {share:.0%} are left out")


def describe_row(problem: Problem, response: str) -> str:
    return f"problem {problem.id}, {problem.question[:_SHOWN]!r}; response {response[:_SHOWN]!r}"


@dataclass(frozen=True)
class RewardFunction:
    """A user's reward function. ``where``: its name in messages: `my_rewards.py: accuracy`."""

    where: str
    target: Target
    limits: Limits

    @property
    def pool(self) -> Pool:
        """The function's worker, started by the first call."""
        return shared_pool(self.target, self.limits)

    def submit(self, columns: Mapping[str, Sequence[Any]], count: int, seconds: float | None = None) -> Future[Any]:
        return self.pool.submit({"count": count, "columns": columns}, seconds)

    def collect(self, future: Future[Any]) -> Rewards:
        """Wait for the values of a call. Raises JobError if it failed, RunError unless it returned ``count`` values."""
        answer = future.result()
        if "wrong" in answer:
            raise RunError(f"task.reward: {self.where} {answer['wrong']}")
        allowed = f"for a completion; it must be {NUMBER}, or None where it does not apply"
        values = [
            RewardFailure("error", f"task.reward: {self.where} returned {value['wrong']} {allowed}")
            if isinstance(value, dict)
            else value
            for value in answer["values"]
        ]
        return Rewards(values, answer["logged"])

    def call_per_row(self, columns: Mapping[str, Sequence[Any]], count: int, failure: RewardFailure) -> Rewards:
        """Call the function per row after the batched call failed; rows beyond its timeout keep ``failure``."""
        until = time.monotonic() + self.limits.seconds
        alone = max(1.0, _ALONE * self.limits.seconds)
        values: list[Value] = [failure] * count
        logged: dict[str, list[Any]] = {}
        for row in range(count):
            if time.monotonic() > until:
                break
            try:
                result = self.collect(self.submit({name: [column[row]] for name, column in columns.items()}, 1, alone))
            except JobError as error:
                values[row] = self.failure(error, alone)
                continue
            values[row] = result.values[0]
            for name, recorded in result.logged.items():
                logged.setdefault(name, [None] * count)[row] = recorded[0]
        return Rewards(values, logged)

    def failure(self, error: JobError, seconds: float | None = None) -> RewardFailure:
        failure = job_failure(error, self.where, self.limits, seconds)
        return RewardFailure(failure.reason, f"task.reward: {failure.message}")


def find_reward_file(written: str, folder: Path | None = None) -> UserFile:
    """Find the file of ``FILE.py:FUNCTION@DIGEST``. Raises UserError if no file has that digest."""
    file, _, function = written.rpartition(":")
    _, at, digest = function.partition("@")
    return find_user_file(f"{file}{at}{digest}", folder)


def match_reward(written: str) -> re.Match[str] | None:
    """Parse the name of a function of a file or an installed package: groups file (or module) and name."""
    return REWARD.fullmatch(written) or INSTALLED.fullmatch(written)


def reward_reference(written: str, folder: Path | None = None) -> str:
    """Return the name of a function with its file's digest or its package's version; an invalid one unchanged.

    Raises UserError for a missing file, or another digest or version than the recorded one.
    """
    if match := REWARD.fullmatch(written):
        file = find_reward_file(written, folder)
        return f"{file.path}:{match['name']}@{file.digest}"
    match = INSTALLED.fullmatch(written)
    if match is None:
        return written
    name, packages = f"{match['file']}:{match['name']}", metadata.packages_distributions()
    installed = packages.get(match["file"].partition(".")[0])
    if installed is None and match["package"] is None:
        return name  # the worker that imports it reports what is missing
    package = f"{installed[0]}=={metadata.version(installed[0])}" if installed else "missing"
    if match["package"] not in (None, package):
        raise UserError(f"task.reward={written}: the installed package is {package}. Install the recorded one.")
    return f"{name}@{package}"


def reward_function(written: str, timeout: float, memory_mib: int) -> RewardFunction:
    recorded = "@" in written.rpartition(":")[2]
    return _load_function(written if recorded else reward_reference(written), timeout, memory_mib)


# Cached, since the file may be edited during a training.
@lru_cache(maxsize=64)
def _load_function(written: str, timeout: float, memory_mib: int) -> RewardFunction:
    name, limits = written.rpartition(":")[2].partition("@")[0], worker_limits(timeout, memory_mib)
    settings: dict[str, Any] = {"name": name, "seconds": limits.loading - 15}
    if REWARD.fullmatch(written):
        file = find_reward_file(written)
        settings["file"], path = file.as_json(), display_path(file.path)
    else:
        settings["module"] = path = written.partition(":")[0]
    return RewardFunction(
        f"{path}: {name}", Target("rlvr_cli.workers.reward:make_handler", settings, purpose=f"runs {path}"), limits
    )


class RewardFunctions:
    def __init__(self, functions: Sequence[RewardFunction]) -> None:
        self.functions = functions
        self.failures = Failures()

    def load(self) -> None:
        problems = []
        for function, loaded in [(function, function.pool.submit(None)) for function in self.functions]:
            try:
                loaded.result()
            except JobError as error:
                problems.append(function.failure(error).message)
        if problems:
            raise UserError(problems)

    def compute(
        self, columns: Mapping[str, Sequence[Any]], count: int, describe_row: Callable[[int], str], share: float
    ) -> list[Rewards]:
        """Return the rewards of each function. Functions run concurrently; a failed call is repeated per row.

        Raises RunError if more than ``share`` of the rows failed, or for a wrong signature or return type.
        """
        futures = [function.submit(columns, count) for function in self.functions]
        results = []
        for function, future in zip(self.functions, futures, strict=True):
            try:
                result = function.collect(future)
            except JobError as error:
                failure = function.failure(error)
                result = Rewards([failure], {})
                if count > 1:
                    result = function.call_per_row(columns, count, failure)
                    if not any(isinstance(value, RewardFailure) for value in result.values):
                        every = f"The batched call for {count} completions failed; calling per completion succeeded"
                        self.failures.warn_once(failure.message, f". {every}")
            self.failures.check_failure_rate(result.values, describe_row, share)
            results.append(result)
        recorded = Counter(name for result in results for name in result.logged)
        if twice := [name for name, times in recorded.items() if times > 1]:
            raise RunError(f"task.reward: several functions record {', '.join(twice)}. Use different names.")
        return results
