"""Bases and measures, computed in processes with a core each; one that is killed takes no other job with it."""

from __future__ import annotations

import importlib
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.text import duration_in_words, some
from rlvr_cli.launch.stopping import StopRequest, say
from rlvr_cli.sweeps.slots import Slot
from rlvr_cli.workers.pool import JobError, Limits, Pool, Target, WorkerDied

TICK = 0.5
# A computation takes as long and as much as it does: weeks and a petabyte.
_LIMITS = Limits(seconds=2e6, memory_mib=2**30)
# Without a terminal, seconds between two lines.
EVERY = 30.0
SHOWN = 2


@dataclass(frozen=True)
class Job:
    """One computation, whose result is a file or folder that appears complete or not at all.

    Attributes:
        name: for people.
        function: what is called in a worker, as `module:function`; ``arguments`` are JSON values.
    """

    name: str
    function: str
    arguments: dict[str, Any] = field(default_factory=dict)


class Stopped(Exception):
    """Ctrl-C, SIGTERM or SIGHUP; what is computed is kept.

    Attributes:
        exit_code: 128 + the signal.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


def carry_out(jobs: Sequence[Job], slots: Sequence[Slot], log: Path, what: str, console: Console) -> list[str | None]:
    """Why each job failed; None for those that are done.

    Args:
        log: the file that gets what the processes print. what: the jobs, for people, as `measures`.
    Raises:
        Stopped: a signal came; jobs that are not finished leave nothing.
    """
    ended: dict[int, str | None] = {}
    running: dict[Future[str | None], tuple[int, Pool]] = {}
    if not jobs:
        return []
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest(announce=False))
        progress = stack.enter_context(_Progress(what, len(jobs), console))
        free = [stack.enter_context(_pool(slot, log)) for slot in slots]
        waiting = list(enumerate(jobs))
        while len(ended) < len(jobs):
            if stop.signal is not None:
                raise Stopped(stop.exit_code)
            while free and waiting:
                pool, (number, job) = free.pop(), waiting.pop(0)
                running[pool.submit([job.function, job.arguments])] = number, pool
            for future in wait(running, TICK, FIRST_COMPLETED).done:
                number, pool = running.pop(future)
                free.append(pool)
                ended[number] = _why(future)
            progress.show(len(ended), [jobs[number].name for number, _ in running.values()])
    return [ended[number] for number in range(len(jobs))]


def _pool(slot: Slot, log: Path) -> Pool:
    """A process with the slot to itself; it is replaced when it is killed, and its job done once more."""
    settings = {"cores": slot.cores, "environment": slot.environment(), "log": str(log.absolute())}
    return Pool(Target(f"{__name__}:worker", settings, what="computes for the ledger"), _LIMITS)


def _why(future: Future[str | None]) -> str | None:
    try:
        return future.result()
    except WorkerDied as error:
        return f"{error}, twice{' (out of memory?)' if 'SIGKILL' in str(error) else ''}"
    except (JobError, RunError) as error:
        return str(error)


def worker(settings: Mapping[str, Any]) -> Callable[[Any], str | None]:
    """In a worker's process: keeps it to its slot and sends what it prints to the log; gives what does its jobs."""
    with Path(settings["log"]).open("ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    os.environ.update(settings["environment"])
    cores = settings["cores"]
    if cores is not None:
        os.environ["OMP_NUM_THREADS"] = str(len(cores))
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
    # It loads torch, after the variables are set.
    from rlvr_cli.models.libraries import set_threads

    set_threads(None if cores is None else len(cores))
    return _attempt


def _attempt(job: tuple[str, Mapping[str, Any]]) -> str | None:
    """Do the job; why it failed, None where it did not."""
    function, arguments = job
    module, _, name = function.partition(":")
    try:
        getattr(importlib.import_module(module), name)(**arguments)
    except (UserError, RunError) as error:
        return " ".join(str(error).split("\n"))
    except Exception as error:
        # One computation that fails must not take the others with it; the log has the whole story.
        traceback.print_exc()
        return f"a bug in rlvr: {type(error).__name__}: {error}"
    return None


class _Progress:
    """How far a list of jobs is: a live line on a terminal, a plain one now and then elsewhere."""

    def __init__(self, what: str, number: int, console: Console) -> None:
        self.what, self.number, self.console, self.done = what, number, console, 0
        self._begun = self._told = time.monotonic()
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> _Progress:
        if self._live is not None:
            self._live.start()
        else:
            say(self.console, f"{self.what}: {self.number} to do")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
        taken = duration_in_words(time.monotonic() - self._begun)
        say(self.console, f"{self.what}: {self.done} of {self.number} in {taken}")

    def show(self, done: int, now: Sequence[str]) -> None:
        """Say that ``done`` jobs have ended and that those of the names ``now`` are being done."""
        self.done, since = done, time.monotonic() - self._begun
        left = f", about {duration_in_words(since / done * (self.number - done))} left" if done else ""
        line = f"{self.what}: {done} of {self.number}{left}"
        if self._live is not None:
            self._live.update(Text(f"{line}  {some(list(now), SHOWN)}", style="dim"))
        elif time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            say(self.console, line)
