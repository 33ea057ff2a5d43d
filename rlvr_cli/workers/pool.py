"""A pool of worker processes for jobs with JSON arguments and results; a worker beyond a job's limits is killed.

    pool = Pool(Target("package.module:make", settings), Limits(seconds=2.0, memory_mib=1024), workers=2)
    pool.submit(job).result()          # raises JobTimeout, WorkerDied or JobFailed

Not ``multiprocessing``, whose spawned processes import the main script: a user's script without
``if __name__ == "__main__"`` would run again, and `rlvr` would load its command line in every worker.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from rlvr_cli.core.errors import RunError
from rlvr_cli.workers import child

# Imports may take long on a busy machine.
_START_SECONDS, _REPLY_SECONDS = 120.0, 30.0
# Polling interval, so that time in which this process is suspended does not count towards a timeout.
_POLL_SECONDS = 1.0
_PACKAGES = str(Path(__file__).parents[2])


class JobError(Exception):
    """A job failed; ``str()`` completes a sentence. ``loading``: whether the worker failed to load its target."""

    loading = False


class JobTimeout(JobError):
    """The job exceeded its timeout; its worker was killed."""


class WorkerDied(JobError):
    """The worker ended during the job."""


class JobFailed(JobError):
    """The job raised an exception with this text; the worker is alive."""


@dataclass(frozen=True)
class Target:
    """The code that workers run.

    Attributes:
        function: `module:function`, called with ``settings`` (a JSON value); returns the job handler.
        trusted: the project's code: its address space is limited, its output discarded, and a MemoryError ends the
            worker. For other code the data segment is limited, and output goes to standard error.
        purpose: verb phrase for messages, as `judges mathematics`.
    """

    function: str
    settings: Any = None
    trusted: bool = False
    purpose: str = "answers jobs"


@dataclass(frozen=True)
class Limits:
    """The time and memory limits of a job.

    Attributes:
        seconds: wall-clock, without time in which the calling process is suspended.
        processor: CPU seconds; None = unlimited.
        memory_mib: of address space for the project's code, otherwise of data.
        loading: wall-clock, for loading the target, which imports the project.
    """

    seconds: float
    processor: float | None = None
    memory_mib: int = 1024
    loading: float = 120.0


class _Worker:
    """A worker process, owned by one thread."""

    def __init__(self, target: Target, limits: Limits) -> None:
        self.target, self.limits = target, limits
        self.jobs = self.pid = 0
        self._socket, theirs = socket.socketpair()
        # Timeout within a message.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(_REPLY_SECONDS), 0))
        self._connection = Connection(os.dup(self._socket.fileno()))
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_PACKAGES, os.environ.get("PYTHONPATH"))))
        if not target.trusted:
            # User code may iterate over sets of strings, in an order that must not depend on the process.
            environment.setdefault("PYTHONHASHSEED", "0")
        with theirs:
            self._process = subprocess.Popen(
                # -P: no imports from the current folder.
                [sys.executable, "-P", "-m", "rlvr_cli.workers.child"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if target.trusted else None,
                env=environment,
                start_new_session=True,
            )

    def start(self) -> None:
        """Load the target in the worker. Raises RunError if the process cannot be started, and JobError."""
        spec = {"function": self.target.function, "settings": self.target.settings}
        spec |= {"trusted": self.target.trusted, "memory_mib": self.limits.memory_mib}
        reason = f"it exited or hangs (memory limit {self.limits.memory_mib} MiB)"
        try:
            child.send(self._connection, spec)
            if self._connection.poll(_START_SECONDS):
                self.pid = int(child.receive(self._connection))
                self._receive_answer(self.limits.loading)
                return
        except JobError as error:
            if not self.target.trusted:
                error.loading = True
                raise
            reason = str(error) or reason
        except child.CONNECTION_LOST:
            pass
        raise RunError(
            f"A process that {self.target.purpose} cannot be started: {reason}. `rlvr doctor` checks packages."
        )

    @property
    def alive(self) -> bool:
        """Return whether the idle worker is alive: it sends nothing, so readable input means its end."""
        try:
            return not self._connection.poll()
        except OSError:
            return False

    def run_job(self, job: Any, seconds: float | None) -> Any:
        """Return the answer to a job. After JobTimeout and WorkerDied the worker is gone."""
        self.jobs += 1
        try:
            child.send(self._connection, [job, self.limits.processor])
        except child.CONNECTION_LOST:
            raise self._death_error() from None
        return self._receive_answer(self.limits.seconds if seconds is None else seconds)

    def _receive_answer(self, seconds: float) -> Any:
        remaining = seconds
        try:
            while not self._connection.poll(wait := min(remaining, _POLL_SECONDS)):
                remaining -= wait
                if remaining <= 0:
                    raise JobTimeout
            kind, content = child.receive(self._connection)
        except (*child.CONNECTION_LOST, TypeError):
            raise self._death_error() from None
        except BaseException:
            # A late answer would be read as that of the next job.
            self.end()
            raise
        if kind != "ok":
            raise JobFailed(content)
        return content

    def _death_error(self) -> JobError:
        status = self.end()
        if status == -signal.SIGPROF and self.limits.processor is not None:
            return JobTimeout()
        return WorkerDied(_describe_exit(status))

    def end(self) -> int | None:
        """Kill the worker and its descendants; return its exit code if known."""
        self.interrupt()
        self._socket.close()
        self._connection.close()
        self.pid = 0
        try:
            return self._process.wait(_REPLY_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None

    def interrupt(self) -> None:
        """Shut the socket down, which ends the worker and a job awaited by another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _describe_exit(status: int | None) -> str:
    if status is None:
        return "its process ended"
    if status >= 0:
        return f"it ended its process with exit code {status}"
    with contextlib.suppress(ValueError):
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process was ended by signal {-status}"


# A job, its timeout (None = that of the limits) and the future of its answer.
_QueuedJob = tuple[Any, float | None, Future[Any]]


class Pool:
    """A thread-safe pool of workers, started by the first jobs. A forked child of this process starts its own workers.

    Args:
        target: the workers' code. limits: of a job; a worker beyond them is killed and replaced.
        workers: number of processes.
        jobs_per_worker: jobs after which a worker is replaced; None = unlimited.
    """

    def __init__(self, target: Target, limits: Limits, workers: int = 1, jobs_per_worker: int | None = None) -> None:
        self.target, self.limits, self.workers = target, limits, workers
        self.jobs_per_worker = jobs_per_worker
        self.closed = False
        self._reset()
        _POOLS.add(self)

    def _reset(self) -> None:
        """Forget the workers, also in a fork, where they belong to the parent."""
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_QueuedJob | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: list[_Worker] = []

    def submit(self, job: Any, seconds: float | None = None) -> Future[Any]:
        """Submit a job. The future raises JobError, RunError if no worker starts, and RuntimeError after ``close``."""
        future: Future[Any] = Future()
        with self._lock:
            if self.closed:
                raise RuntimeError("the pool is closed")
            if len(self._threads) < self.workers:
                name = f"workers-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, args=(self._jobs,), name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise RunError(f"No thread for a process that {self.target.purpose}: {error}.") from error
                self._threads.append(thread)
            self._jobs.put((job, seconds, future))
        return future

    @property
    def pids(self) -> list[int]:
        with self._lock:
            return [worker.pid for worker in self._running if worker.pid]

    def drain(self) -> None:
        """End the workers after their pending jobs; later jobs start new workers."""
        with self._lock:
            for _ in self._threads:
                self._jobs.put(None)
            self._threads, self._jobs = [], queue.SimpleQueue()

    def close(self) -> None:
        """Kill the workers. Pending and running jobs fail with RuntimeError."""
        with self._lock:
            self.closed = True
            threads = list(self._threads)
            for worker in self._running:
                worker.interrupt()
            for _ in threads:
                self._jobs.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=_REPLY_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, jobs: queue.SimpleQueue[_QueuedJob | None]) -> None:
        worker: _Worker | None = None
        while (waiting := jobs.get()) is not None:
            job, seconds, future = waiting
            if not future.set_running_or_notify_cancel():
                continue
            try:
                worker = self._get_worker(worker)
                try:
                    answer = worker.run_job(job, seconds)
                except WorkerDied:
                    # It may have been killed, or full of earlier jobs' data: retry once in a new worker.
                    worker = self._get_worker(worker)
                    answer = worker.run_job(job, seconds)
                if self.closed:
                    raise RuntimeError
            except BaseException as error:
                future.set_exception(RuntimeError("the pool was closed") if self.closed else error)
            else:
                future.set_result(answer)
        self._retire(worker)

    def _get_worker(self, worker: _Worker | None) -> _Worker:
        """Return the worker if it can run another job, else a new one."""
        if worker is not None and worker.alive and worker.jobs != self.jobs_per_worker:
            return worker
        self._retire(worker)
        try:
            worker = _Worker(self.target, self.limits)
        except OSError as error:  # out of descriptors, processes or memory
            raise RunError(f"A process that {self.target.purpose} cannot be started: {error}.") from None
        try:
            with self._lock:
                self._running.append(worker)
                if self.closed:
                    raise RuntimeError
            worker.start()
        except BaseException:
            self._retire(worker)
            raise
        return worker

    def _retire(self, worker: _Worker | None) -> None:
        if worker is not None:
            worker.end()
            with self._lock:
                if worker in self._running:
                    self._running.remove(worker)


# Shared pools, least recently used first; those beyond 16 are drained.
_SHARED: OrderedDict[str, Pool] = OrderedDict()
_MOST_SHARED, _SHARED_LOCK = 16, threading.Lock()


def shared_pool(target: Target, limits: Limits, workers: int = 1) -> Pool:
    """Return the process-wide pool for the target and limits; the first call creates it."""
    key = json.dumps([asdict(target), asdict(limits), workers])
    with _SHARED_LOCK:
        pool = _SHARED.pop(key, None)
        if pool is None or pool.closed:
            pool = Pool(target, limits, workers)
        _SHARED[key] = pool
        if len(_SHARED) > _MOST_SHARED:
            # Not closed: callers may still use it.
            _SHARED.popitem(last=False)[1].drain()
    return pool


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _after_fork() -> None:
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    for pool in list(_POOLS):
        pool._reset()


os.register_at_fork(after_in_child=_after_fork)
