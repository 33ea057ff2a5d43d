"""A pool of worker processes, which answer jobs and may be killed over any of them."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rlvr_cli.core.errors import RunError
from rlvr_cli.workers.process import Died, Failed, ForkServerHandle, Judge, Late, Limits, NoAnswer, Worker

__all__ = ["Died", "Failed", "Judge", "Late", "LatestPool", "Limits", "NoAnswer", "Pool"]

# Seconds that closing leaves its threads to end by themselves.
CLOSING = 5.0


@dataclass(frozen=True)
class _Job:
    job: Any
    seconds: float | None
    future: Future[Any] = field(default_factory=Future)


class Pool:
    """Workers that answer jobs: JSON in, JSON out.

    They start with the first job. Every method may be called from any thread, from several at once, and from asyncio
    by ``asyncio.to_thread``. A forked child of this process gets workers of its own.

    Args:
        judge: what they do. limits: what a job may use; a worker that takes more is killed and replaced.
        workers: number of processes.
        jobs_per_worker: a process that has had this many is replaced by a fresh one; None = never.
    """

    def __init__(self, judge: Judge, limits: Limits, workers: int = 1, jobs_per_worker: int | None = None) -> None:
        if workers < 1 or limits.seconds <= 0 or (limits.processor or 1) <= 0 or limits.memory_mib < 256:
            raise ValueError("a pool needs at least one worker, a positive deadline and 256 MiB")
        self.judge_in_workers, self.limits, self.workers = judge, limits, workers
        self.jobs_per_worker = jobs_per_worker
        self.closed = False
        self._forget()
        _POOLS.add(self)

    def submit(self, job: Any, seconds: float | None = None) -> Future[Any]:
        """The answer to a job, to come: raises NoAnswer, RunError when no worker can be started, RuntimeError when
        the pool was closed.

        Args:
            seconds: in place of those of the limits.
        Raises:
            RuntimeError: the pool is closed.
        """
        waiting = _Job(job, seconds)
        with self._lock:
            if self.closed:
                raise RuntimeError("the pool is closed")
            # A thread that could not be started, or whose start was interrupted, serves nobody.
            self._threads[:] = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) < self.workers:
                name = f"workers-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    if not self._threads:
                        said = f"A process that {self.judge_in_workers.what} cannot be waited for: {error}."
                        raise RunError(said) from error
                else:
                    self._threads.append(thread)
            self._jobs.put(waiting)
        return waiting.future

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that run now."""
        with self._lock:
            return [worker.pid for worker in self._running if worker.alive]

    def close(self) -> None:
        """Kill the workers. Jobs that wait or are being done fail with RuntimeError; the pool is of no more use.

        A call that is interrupted is finished by the next, at the latest by that at the end of the program.
        """
        with self._lock:
            self.closed = True
            threads, workers = list(self._threads), list(self._running)
            for worker in workers:
                worker.stop()
            for _ in threads:
                self._jobs.put(None)
        # They have the dead reaped. One that waits for a process to start goes on when that is killed.
        until = time.monotonic() + CLOSING
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(0.0, until - time.monotonic()))
        self._nursery.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forget(self) -> None:
        """A pool without processes; what a fork copied of them belongs to the parent."""
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: list[Worker] = []
        self._nursery = ForkServerHandle(self.judge_in_workers, self.limits)

    def _serve(self) -> None:
        """Give jobs to one worker after another, until the pool is closed."""
        worker: Worker | None = None
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            if self.closed:
                job.future.set_exception(RuntimeError("the pool was closed"))
                continue
            try:
                worker = self._ready(worker)
                try:
                    answer = worker.ask(job.job, job.seconds)
                except Died:
                    if self.closed:
                        raise
                    # Someone else may have killed it, or earlier jobs filled its memory: once more, in a fresh one.
                    worker = self._ready(worker)
                    answer = worker.ask(job.job, job.seconds)
            except BaseException as error:
                job.future.set_exception(RuntimeError("the pool was closed") if self.closed else error)
                continue
            if self.closed:
                job.future.set_exception(RuntimeError("the pool was closed"))
            else:
                job.future.set_result(answer)
        self._retire(worker)

    def _ready(self, worker: Worker | None) -> Worker:
        most = self.jobs_per_worker
        if worker is not None and worker.alive and (most is None or worker.asked < most):
            return worker
        self._retire(worker)
        worker = Worker(self._nursery)
        with self._lock:
            closed = self.closed
            self._running.append(worker)
        if closed:
            self._retire(worker)
            raise RuntimeError("the pool was closed")
        return worker

    def _retire(self, worker: Worker | None) -> None:
        if worker is not None:
            worker.kill()
            with self._lock:
                if worker in self._running:
                    self._running.remove(worker)


class LatestPool:
    """The pool that was asked for last; one for something else is closed."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._pool: Pool | None = None

    def get(self, key: Hashable, make: Callable[[], Pool]) -> Pool:
        """The pool for ``key``, which ``make`` makes where it is not the latest."""
        if self._pool is None or self._pool.closed or self._key != key:
            self.close()
            self._key, self._pool = key, make()
        return self._pool

    def close(self) -> None:
        """Close it; the next one that is asked for is made."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _after_fork() -> None:
    for pool in list(_POOLS):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
