"""The guard around a task of the user's own: its judge in worker processes, its faults with file and line."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import astuple, replace
from numbers import Real
from typing import Annotated, Any, ClassVar, cast

from pydantic import Field

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.own_code import OwnFile, TooLong, line_of, said_of, staying, within
from rlvr_cli.core.section import Probability
from rlvr_cli.core.terminal import tell
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.files import text_problem
from rlvr_cli.tasks.problem import Judging, Problem, Split, Verdict
from rlvr_cli.tasks.rewards import LIMIT_KEYS, InWorkers, MemoryMiB, Timeout, why
from rlvr_cli.workers.pool import Judge, LatestPool, Limits, NoAnswer, Pool

# The keys that a task of a file has besides its own.
LIMITS: Mapping[str, Any] = {
    "reward_timeout": (
        Timeout,
        Field(60.0, description="Seconds by the clock that a verdict may take; all problems, ten times as long."),
    ),
    "reward_memory": (
        MemoryMiB,
        Field(16_384, description="MiB of memory that the judge may use."),
    ),
    "reward_failures": (
        Probability,
        Field(
            0.1,
            description="The share of the completions of a rollout that may be without a verdict because the judge "
            "failed; more end the run.",
        ),
    ),
    "reward_workers": (Annotated[int, Field(ge=1, le=64)], Field(2, description="Processes that judge.")),
}
# Problems are made all at once.
_PROBLEMS = 10
# Seconds of waiting for them after which that is said, and after which it is said again.
_SOON, _AGAIN = 5.0, 30.0


class Recorded:
    """A task of a file, as a run records it."""

    runs_own_code = True
    not_deciding = LIMIT_KEYS


class Guarded(Recorded):
    """A task whose methods, those of the next class, are the user's.

    ``generate`` and ``judge`` run in workers with a deadline and a memory limit. The others need what only this process
    has (a tokenizer, the data) and run here, with the same deadline where this is the main thread.
    """

    pooled = True
    own_file: ClassVar[OwnFile]
    # By ``judging``, whatever the file's class has.
    judge, judge_many = Task.judge, Task.judge_many

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        file = _file(type(self))
        seconds = _PROBLEMS * _timeout(self)
        try:
            made = _pool(self).submit({"generate": [split, count, seed]}, seconds)
            rows = _waited(made, self, f"is making {count:,} {split} problems", seconds)
        except NoAnswer as error:
            about = f"{count} problems of {split}, seed {seed}"
            raise RunError(
                f"{why(error, file, _called(self, 'generate'), _limits(self), seconds).said} ({about})."
            ) from None
        found = [Problem(**row) for row in rows]
        if len(found) < count or len({one.id for one in found}) < len(found):
            alike = len(found) - len({one.id for one in found})
            said = f"{len(found)} problems, {alike} of them with the id of another; {count} different ones are wanted"
            raise RunError(f"{file}: {_called(self, 'generate')} returned {said}. Make more, or ask for fewer.")
        return found

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        with _here(self, "problem_from", where):
            found = super().problem_from(fields, where)  # type: ignore[misc]
        return checked_problem(_file(type(self)), "problem_from", found)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        with _here(self, "prompt", f"problem {problem.id}"):
            found = super().prompt(problem, tokenizer)  # type: ignore[misc]
        unwritable = text_problem(_typed(_file(type(self)), "prompt", found, str))
        if unwritable is not None:
            raise RunError(f"{_file(type(self))}: prompt of problem {problem.id!r}: {unwritable}.")
        return cast("str", found)

    def solutions(self, problem: Problem) -> Iterator[str] | None:
        with _here(self, "solutions", f"problem {problem.id}"):
            return cast("Iterator[str] | None", super().solutions(problem))  # type: ignore[misc]

    def judging(self) -> Judging:
        """Every response is a job of its own, whose verdict comes while others are still to come."""
        file, limits = _file(type(self)), _limits(self)
        return InWorkers(
            _pool(self),
            lambda problem, response, cut: {"judge": list(astuple(problem)), "response": response, "truncated": cut},
            lambda _, said: Verdict(*said),
            lambda error: why(error, file, _called(self, "judge"), limits),
            cast("Any", self).reward_failures,
            file,
        )

    def size_pool(self, workers: int) -> None:
        """Have that many processes judge, whatever ``reward_workers`` says."""
        _SIZES[type(self)] = workers


# By the class: processes that were asked for.
_SIZES: dict[type, int] = {}
_POOL = LatestPool()


def _timeout(task: Any) -> float:
    return float(task.reward_timeout)


def _limits(task: Any) -> Limits:
    return Limits(_timeout(task), memory_mib=task.reward_memory)


def _waited(made: Future[Any], task: Any, what: str, seconds: float) -> Any:
    """What was made; where it takes long, what is waited for is said on standard error."""
    place, began = f"{_file(type(task))}: {_called(task, 'generate')}", time.monotonic()
    if hasattr(task, "called"):
        what += f", and first up to {task.held_out:,} of each split, to keep them apart (task.held_out)"
    said = f"{what}; it has {seconds:g} s ({_PROBLEMS} times task.reward_timeout)"
    while not wait([made], _AGAIN if time.monotonic() - began > _SOON else _SOON).done:
        tell(f"{place} {said or f'is at work for {time.monotonic() - began:.0f} s'}.")
        said = ""
    return made.result()


def _pool(task: Any) -> Pool:
    """The workers of the task as it is set; those of an other setting, and of another version, are ended."""
    source, values = type(task).own_file, json.dumps(task.model_dump(), sort_keys=True, default=list)
    workers = _SIZES.get(type(task), task.reward_workers)
    settings = {"source": vars(source), "task": json.loads(values)}
    judge = Judge("rlvr_cli.tasks.from_file:task_worker", settings, what=f"runs {source.file}")
    return _POOL.get((type(task), values, workers), lambda: Pool(judge, _limits(task), workers))


def answers(kind: Any, values: Mapping[str, Any]) -> Callable[[Any], Any]:
    """What a worker of a file's task does: ``{"generate": [...]}`` to problems, ``{"judge": ...}`` to a verdict.

    Args:
        kind: the task's class, without whose guard they work. values: those of its keys.
    """
    own: type[Task] = kind.__bases__[1]
    # As JSON, in which a list may stand for a tuple.
    task = own.model_validate_json(json.dumps({key: values[key] for key in own.model_fields}))
    at_once = own.judge_many is not Task.judge_many
    file = _file(kind)

    def answer(job: Any) -> Any:
        if "generate" in job:
            split, count, seed = job["generate"]
            with _speaking(file, _called(task, "generate")):
                found = list(task.generate(split, count, seed))
            return [vars(checked_problem(file, _called(task, "generate"), one)) for one in found]
        problem = Problem(*job["judge"])
        with _speaking(file, _called(task, "judge")):
            if at_once:
                (said,) = task.judge_many([problem], [job["response"]], [job["truncated"]])
            else:
                said = task.judge(problem, job["response"], truncated=job["truncated"])
        judge = f"{file}: {_called(task, 'judge')}"
        return list(astuple(_checked(judge, _typed(file, "judge", said, Verdict), task.reasons)))

    return answer


def _checked(judge: str, verdict: Verdict, reasons: Sequence[str]) -> Verdict:
    """The verdict with plain numbers. Raises RunError for one that is none, which ``judge`` gave."""
    if verdict.reason not in reasons:
        allowed = ", ".join(reasons)
        raise RunError(f"{judge} gave the reason {verdict.reason!r:.60}; reasons has {allowed}")
    if not isinstance(verdict.parts, dict):
        raise RunError(f"{judge} gave the parts {verdict.parts!r:.60}; expected a dict of numbers")
    if not (verdict.answer is None or isinstance(verdict.answer, str)):
        raise RunError(f"{judge} gave the answer {verdict.answer!r:.60}; expected text or None")
    unwritable = text_problem([verdict.answer, list(verdict.parts), dict(verdict.logged)])
    if unwritable is not None:
        raise RunError(f"{judge} gave text that cannot be written: {unwritable}")
    parts = {str(name): _number(judge, f"the part {name}", value) for name, value in verdict.parts.items()}
    reward = _number(judge, "the reward", verdict.reward)
    for name, value in parts.items():
        if math.isfinite(reward) and not math.isfinite(value):
            raise RunError(f"{judge} gave the part {name} {value} of a reward of {reward:g}; expected a finite number")
    return replace(verdict, reward=reward, parts=parts, correct=bool(verdict.correct), scorable=bool(verdict.scorable))


def _number(judge: str, what: str, value: Any) -> Any:
    if hasattr(value, "item") and not isinstance(value, Real):
        with contextlib.suppress(Exception):
            value = value.item()
    if not isinstance(value, Real):
        raise RunError(f"{judge} gave {what} {value!r:.60} ({type(value).__name__}); expected a number")
    return value if isinstance(value, int | float) and not hasattr(value, "item") else float(value)


def checked_problem(file: str, method: str, found: Any) -> Problem:
    """The problem, which must be JSON: so it is written to runs, and sent to workers."""
    problem = cast("Problem", _typed(file, method, found, Problem))
    plain = all(str(text).isascii() for text in (problem.id, problem.question, problem.subgroup, problem.structure))
    for name, value in problem.data.items() if isinstance(problem.data, dict) else (("data", problem.data),):
        try:
            written = json.dumps(value)
            plain = plain and "\\ud" not in written and str(name).isascii()
            same = json.loads(written) == value and isinstance(name, str) and isinstance(problem.data, dict)
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            said = f"the field {name!r} of problem {problem.id} is not a JSON value ({type(value).__name__})"
            raise RunError(f"{file}: {method}: {said}. Write text, numbers, lists and dicts with names of text.")
    # Looked for where it can be: many problems are made.
    unwritable = None if plain else text_problem(vars(problem))
    if unwritable is not None:
        raise RunError(f"{file}: {method}: problem {problem.id!r}: {unwritable}")
    return problem


@contextlib.contextmanager
def _here(task: Any, method: str, about: str) -> Iterator[None]:
    """Have a method, called in this process, end by its deadline; what is wrong is said as by :func:`_speaking`."""
    file, seconds = _file(type(task)), _timeout(task)
    try:
        with _speaking(file, _called(task, method), f" ({about})."), within(seconds), staying():
            yield
    except TooLong as error:
        said = f"{_called(task, method)} took more than {seconds:g} s (task.reward_timeout)"
        raise RunError(f"{line_of(error, file)}: {said} ({about}).") from None


@contextlib.contextmanager
def _speaking(file: str, method: str, told: str = "") -> Iterator[None]:
    """Have what a method raises said with the file and the line."""
    try:
        yield
    except (UserError, RunError):
        raise
    except (Exception, SystemExit) as error:
        raise RunError(f"{line_of(error, file)}: {method} raised {said_of(error)}{told}") from error


def _typed(file: str, method: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        got = f"{value!r:.60} ({type(value).__name__})"
        raise RunError(f"{file}: {method} returned {got}; a {kind.__name__} is wanted.")
    return value


def _called(task: Any, method: str) -> str:
    """What a method is called in the file."""
    names: Mapping[str, str] = getattr(task, "called", {})
    return names.get(method, method)


def _file(kind: type) -> str:
    return str(sys.modules[kind.__module__].__file__)
