"""Carries jobs out in several processes, one core each; one that is killed takes no other job with it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.console import Console

from rlvr_cli.launch.stopping import StopRequest
from rlvr_cli.ledger.jobs import Job
from rlvr_cli.ledger.progress import Bar
from rlvr_cli.sweeps.slots import Slot, with_parent

WORKER = "rlvr_cli.ledger.worker"
TICK = 0.5
# How often a job may lose its worker before it counts as what kills it.
MOST_LOST = 2


class Stopped(Exception):
    """Ctrl-C, SIGTERM or SIGHUP; what is computed is kept.

    Attributes:
        exit_code: 128 + the signal.
    """

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    job: int | None = None
    said: bytes = b""


@dataclass
class _Work:
    """The jobs that wait, how often each has lost its worker, and how each has ended."""

    jobs: Sequence[Job]
    waiting: list[int] = field(default_factory=list)
    lost: dict[int, int] = field(default_factory=dict)
    ended: dict[int, str | None] = field(default_factory=dict)


def carry_out(jobs: Sequence[Job], slots: Sequence[Slot], log: Path, what: str, console: Console) -> list[str | None]:
    """Why each job failed; None for those that are done.

    Args:
        log: the file that gets what the processes print. what: the jobs, for people, as `measures`.
    Raises:
        Stopped: a signal came; jobs that are not finished leave nothing.
    """
    work = _Work(jobs, list(range(len(jobs))))
    if not jobs:
        return []
    workers: dict[int, _Worker] = {}
    with ExitStack() as stack:
        output = stack.enter_context(log.open("ab"))
        stop = stack.enter_context(StopRequest(announce=False))
        selector = stack.enter_context(selectors.DefaultSelector())
        bar = stack.enter_context(Bar(what, len(jobs), console))
        stack.callback(_kill, workers)
        while len(work.ended) < len(jobs):
            if stop.signal is not None:
                raise Stopped(stop.exit_code)
            for number, slot in enumerate(slots):
                if number not in workers and work.waiting:
                    workers[number] = _start(slot, output)
                    selector.register(_stdout(workers[number]), selectors.EVENT_READ, number)
                if number in workers and workers[number].job is None and work.waiting:
                    _give(workers[number], work)
            for key, _ in selector.select(TICK):
                _hear(key.data, workers, work, selector)
            bar.show(len(work.ended), [jobs[one.job].name for one in workers.values() if one.job is not None])
    return [work.ended[number] for number in range(len(jobs))]


def _start(slot: Slot, output: IO[bytes]) -> _Worker:
    bind = with_parent()

    def begin() -> None:
        bind()
        if slot.cores is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, slot.cores)

    return _Worker(
        subprocess.Popen(
            [sys.executable, "-m", WORKER, *([] if slot.cores is None else [str(len(slot.cores))])],
            env={**os.environ, **slot.environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            # Ctrl-C is for the process that started it alone.
            start_new_session=True,
            preexec_fn=begin,
        )
    )


def _stdout(worker: _Worker) -> IO[bytes]:
    assert worker.process.stdout is not None
    return worker.process.stdout


def _give(worker: _Worker, work: _Work) -> None:
    worker.job = work.waiting.pop(0)
    job = work.jobs[worker.job]
    assert worker.process.stdin is not None
    line = json.dumps({"kind": job.kind, "content": job.content}) + "\n"
    try:
        worker.process.stdin.write(line.encode())
        worker.process.stdin.flush()
    except BrokenPipeError:
        # Its output ends as well, which says so.
        return


def _hear(number: int, workers: dict[int, _Worker], work: _Work, selector: selectors.BaseSelector) -> None:
    """Take an answer; or leave of a worker that has ended, whose job goes to another one."""
    worker = workers[number]
    said = os.read(_stdout(worker).fileno(), 65536)
    worker.said += said
    line, newline, rest = worker.said.partition(b"\n")
    if newline and worker.job is not None:
        work.ended[worker.job] = json.loads(line)
        worker.job, worker.said = None, rest
    if said:
        return
    selector.unregister(_stdout(worker))
    del workers[number]
    code = worker.process.wait()
    job = worker.job
    if job is None:
        return
    work.lost[job] = work.lost.get(job, 0) + 1
    if work.lost[job] < MOST_LOST:
        work.waiting.append(job)
        return
    how = f"was killed by {signal.Signals(-code).name} (out of memory?)" if code < 0 else f"ended with {code}"
    work.ended[job] = f"its process {how}, {MOST_LOST} times"


def _kill(workers: Mapping[int, _Worker]) -> None:
    for worker in workers.values():
        worker.process.kill()
    for worker in workers.values():
        worker.process.wait()
        for stream in (worker.process.stdin, worker.process.stdout):
            if stream is not None:
                stream.close()
