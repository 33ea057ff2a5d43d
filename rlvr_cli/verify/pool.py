"""A pool of worker processes that judge pairs of answers, and may be killed over any of them."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

from rlvr_cli.core.errors import RunError
from rlvr_cli.verify.math_answer import DIED, TIMEOUT, Outcome, check
from rlvr_cli.verify.process import Nursery, Worker

__all__ = ["Outcome", "Pool", "shared_pool", "size_shared_pool"]

WORKERS = 2
DEADLINE = 2.0
MEMORY_MIB = 1024
# SymPy keeps what it has computed; a process that has judged this many pairs is replaced by a fresh one.
PAIRS_PER_WORKER = 5000
# Pairs whose outcomes a pool remembers. A timeout or a death may have come of a busy machine and is not among them.
REMEMBERED = 20_000
# Seconds that closing leaves its threads to end by themselves.
CLOSING = 5.0


@dataclass(frozen=True)
class _Job:
    gold: str
    answer: str
    future: Future[Outcome]


class Pool:
    """Judges pairs (gold answer, answer) by their mathematics, in processes of their own.

    Pairs that ``math_answer.check`` decides never leave the calling process; nothing else is done to a text there.
    The processes start with the first pair that needs one, as forks of one that has SymPy loaded. Every method may be
    called from any thread, from several at once, and from asyncio by ``asyncio.to_thread``. A forked child of this
    process gets workers of its own.

    Args:
        workers: number of processes.
        deadline: seconds of a processor that one pair may take in a ready process, and a fifth of the seconds that it
            may take at all; then the process is killed and replaced, and the pair's outcome is ``timeout``. So a busy
            machine does not change what a response is worth.
        memory_mib: address space of one process. A pair that needs more has the outcome ``died``.
    """

    def __init__(self, workers: int = WORKERS, deadline: float = DEADLINE, memory_mib: int = MEMORY_MIB) -> None:
        if workers < 1 or deadline <= 0 or memory_mib < 256:
            raise ValueError("a pool needs at least one worker, a positive deadline and 256 MiB")
        self.workers, self.deadline, self.memory_mib = workers, deadline, memory_mib
        self._closed = False
        self._memory: dict[tuple[str, str], Outcome] = {}
        self._forget()
        _POOLS.add(self)

    def judge(self, gold: str, answer: str) -> Outcome:
        """The outcome of one pair; see ``judge_many``."""
        return self.judge_many([(gold, answer)])[0]

    def judge_many(self, pairs: Sequence[tuple[str, str]]) -> list[Outcome]:
        """One outcome a pair, in order; identical pairs are judged once, also across calls. No text makes it raise.

        Raises RunError when no worker process can be started, and RuntimeError when the pool is closed.
        """
        with self.pending() as pending:
            for pair in pairs:
                pending.add(*pair)
            return [pending.outcome(*pair) for pair in pairs]

    def pending(self) -> Pending:
        """A judgement of pairs that come one after another, while the caller does something else."""
        return Pending(self)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that run now."""
        with self._lock:
            return [worker.pid for worker in self._running if worker.alive]

    def close(self) -> None:
        """Kill the workers. Pairs that wait or are being judged fail with RuntimeError; the pool is of no more use.

        A call that is interrupted is finished by the next, at the latest by that at the end of the program.
        """
        with self._lock:
            self._closed = True
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

    def __enter__(self) -> Pool:
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
        self._nursery = Nursery(self.deadline, self.memory_mib)

    def _remembered(self, pair: tuple[str, str], outcome: Outcome) -> Outcome:
        if outcome not in (TIMEOUT, DIED):
            with self._lock:
                if len(self._memory) >= REMEMBERED:
                    self._memory.clear()
                self._memory[pair] = outcome
        return outcome

    def _submit(self, gold: str, answer: str) -> Future[Outcome]:
        job = _Job(gold, answer, Future())
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            # A thread that could not be started, or whose start was interrupted, serves nobody.
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) < self.workers:
                name = f"verify-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    if not self._threads:
                        raise RunError(f"Mathematics cannot be judged: {error}.") from error
                else:
                    self._threads.append(thread)
            self._jobs.put(job)
        return job.future

    def _serve(self) -> None:
        """Give jobs to one worker after another, until the pool is closed."""
        worker: Worker | None = None
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            if self._closed:
                job.future.set_exception(RuntimeError("the pool was closed"))
                continue
            try:
                worker = self._ready(worker)
                outcome = worker.ask(job.gold, job.answer)
                if outcome is DIED and not self._closed:
                    # Someone else may have killed it, or earlier pairs filled its memory: once more, in a fresh one.
                    worker = self._ready(worker)
                    outcome = worker.ask(job.gold, job.answer)
            except BaseException as error:
                job.future.set_exception(RuntimeError("the pool was closed") if self._closed else error)
                continue
            if self._closed:
                job.future.set_exception(RuntimeError("the pool was closed"))
            else:
                job.future.set_result(outcome)
        self._retire(worker)

    def _ready(self, worker: Worker | None) -> Worker:
        if worker is not None and worker.alive and worker.asked < PAIRS_PER_WORKER:
            return worker
        self._retire(worker)
        worker = Worker(self._nursery)
        with self._lock:
            closed = self._closed
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


class Pending:
    """Pairs that a pool judges; identical ones are judged once and have one outcome.

    A context manager: what has not begun at its end is not judged. Not for several threads at once.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._outcomes: dict[tuple[str, str], Outcome | Future[Outcome]] = {}

    def add(self, gold: str, answer: str) -> None:
        """Have a pair judged, without waiting. Raises as ``Pool.judge_many``."""
        pair = (gold, answer)
        if pair not in self._outcomes:
            self._outcomes[pair] = check(*pair) or self._pool._memory.get(pair) or self._pool._submit(*pair)

    def outcome(self, gold: str, answer: str) -> Outcome:
        """The outcome of a pair that was added; waits for it. Raises as ``Pool.judge_many``."""
        pair = (gold, answer)
        outcome = self._outcomes[pair]
        if isinstance(outcome, Future):
            outcome = self._outcomes[pair] = self._pool._remembered(pair, outcome.result())
        return outcome

    def __enter__(self) -> Pending:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for outcome in self._outcomes.values():
            if isinstance(outcome, Future):
                outcome.cancel()


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()
_shared: Pool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> Pool:
    """The pool of this process, made at the first call."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared._closed:
            _shared = Pool()
        return _shared


def size_shared_pool(workers: int) -> None:
    """Have ``shared_pool`` give a pool of that many processes; one of another size is closed."""
    global _shared
    with _shared_lock:
        if _shared is not None and not _shared._closed:
            if _shared.workers == workers:
                return
            _shared.close()
        _shared = Pool(workers)


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in list(_POOLS):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
