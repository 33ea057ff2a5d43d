"""A pool of worker processes that answer jobs, JSON in and JSON out, and may be killed over any of them.

    pool = Pool(Target("package.module:make", settings), Limits(seconds=2.0, memory_mib=1024), workers=2)
    pool.submit(job).result()          # raises JobTimeout, WorkerDied or JobFailed

Not ``multiprocessing``: its spawned processes import the main script again, so that a user's script without
``if __name__ == "__main__"`` would start itself, and `rlvr` itself would load its whole command line in every worker.
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

# A machine under load may take very long to import a library.
_START_SECONDS, _REPLY_SECONDS = 120.0, 30.0
# A wait is made of such pieces. What one takes longer, while this process stands still, counts against no job.
_PIECE = 1.0
# Loading may take this long, however little time jobs have: the project itself is imported then.
LOADING = 30.0
_PACKAGES = str(Path(__file__).parents[2])


class JobError(Exception):
    """A job without an answer; ``str()`` is the end of a sentence about it.

    Attributes:
        loading: whether there was no job yet: the worker was loading its target.
    """

    loading = False


class JobTimeout(JobError):
    """The job took too long; its worker was killed."""


class WorkerDied(JobError):
    """The worker ended during the job."""


class JobFailed(JobError):
    """The job raised an exception, which is the text; the worker goes on."""


@dataclass(frozen=True)
class Target:
    """The code that workers run.

    Attributes:
        function: `module:function`; called with ``settings`` (a JSON value) it returns the function that answers jobs.
        ours: whether it is code of this project, which has limited address space and prints nothing, and whose memory
            error ends the process. Of other code the data is limited, and what it prints goes to standard error.
        purpose: verb phrase for messages, as `judges mathematics`.
    """

    function: str
    settings: Any = None
    ours: bool = False
    purpose: str = "answers jobs"


@dataclass(frozen=True)
class Limits:
    """The time and memory that a job may use.

    Attributes:
        seconds: by the clock; time in which the calling process is stopped does not count.
        processor: seconds of a processor; None = any.
        memory_mib: address space of a target of ours, otherwise data.
        load_seconds: by the clock, for loading the target; None = the longer one of ``seconds`` and LOADING.
    """

    seconds: float
    processor: float | None = None
    memory_mib: int = 1024
    load_seconds: float | None = None

    @property
    def loading(self) -> float:
        """Return the seconds by the clock in which a worker may load its target."""
        return max(self.seconds, LOADING) if self.load_seconds is None else self.load_seconds


class _Worker:
    """A worker process, owned by one thread."""

    def __init__(self, target: Target, limits: Limits) -> None:
        self.target, self.limits = target, limits
        self.jobs = self.pid = 0
        self._socket, theirs = socket.socketpair()
        # Nobody waits longer for the rest of a message.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(_REPLY_SECONDS), 0))
        self._connection = Connection(os.dup(self._socket.fileno()))
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_PACKAGES, os.environ.get("PYTHONPATH"))))
        if not target.ours:
            # Code of the user's may go through a set of words: in every process in the same order.
            environment.setdefault("PYTHONHASHSEED", "0")
        with theirs:
            self._process = subprocess.Popen(
                # -P: a file in the current folder that is called like a module is not imported.
                [sys.executable, "-P", "-m", "rlvr_cli.workers.child"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if target.ours else None,
                env=environment,
                start_new_session=True,
            )

    def start(self) -> None:
        """Load the target in the worker. Raises RunError where no process can be had, and JobError."""
        spec = {"function": self.target.function, "settings": self.target.settings}
        spec |= {"ours": self.target.ours, "memory_mib": self.limits.memory_mib}
        reason = f"it ended or hangs (memory limit {self.limits.memory_mib} MiB)"
        try:
            child.send(self._connection, spec)
            if self._connection.poll(_START_SECONDS):
                self.pid = int(child.receive(self._connection))
                self._answer(_START_SECONDS if self.target.ours else self.limits.loading)
                return
        except JobError as error:
            if not self.target.ours:
                error.loading = True
                raise
            reason = str(error) or reason
        except child.GONE:
            pass
        raise RunError(
            f"A process that {self.target.purpose} cannot be started: {reason}. `rlvr doctor` checks packages."
        )

    @property
    def alive(self) -> bool:
        """Return whether the worker waits for a job. It sends nothing then, so that anything to be read is its end."""
        try:
            return not self._connection.poll()
        except OSError:
            return False

    def ask(self, job: Any, seconds: float | None) -> Any:
        """Return the answer to a job. After JobTimeout and WorkerDied there is no worker."""
        self.jobs += 1
        try:
            child.send(self._connection, [job, self.limits.processor])
        except child.GONE:
            raise self._died() from None
        return self._answer(self.limits.seconds if seconds is None else seconds)

    def _answer(self, seconds: float) -> Any:
        remaining = seconds
        try:
            while not self._connection.poll(piece := min(remaining, _PIECE)):
                remaining -= piece
                if remaining <= 0:
                    raise JobTimeout
            kind, content = child.receive(self._connection)
        except (*child.GONE, TypeError):
            raise self._died() from None
        except BaseException:
            # Its late answer would be taken for the next job's.
            self.end()
            raise
        if kind != "ok":
            raise JobFailed(content)
        return content

    def _died(self) -> JobError:
        status = self.end()
        if status == -signal.SIGPROF and self.limits.processor is not None:
            return JobTimeout()
        return WorkerDied(_ending(status))

    def end(self) -> int | None:
        """Kill the worker with everything that it started; return its exit code where it is known."""
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
        """Close the socket for both ends, which ends the worker and a job that another thread waits for."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _ending(status: int | None) -> str:
    if status is None:
        return "its process ended"
    if status >= 0:
        return f"it ended its process with exit code {status}"
    with contextlib.suppress(ValueError):
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process was ended by signal {-status}"


# A job, its deadline (None = that of the limits) and the future that gets the answer.
_Waiting = tuple[Any, float | None, Future[Any]]


class Pool:
    """Workers that answer jobs.

    They start with the first job. Every method may be called from any thread. A forked child of this process gets
    workers of its own.

    Args:
        target: what they run. limits: what a job may use; a worker that takes more is killed and replaced.
        workers: number of processes.
        jobs_per_worker: a process that has had this many is replaced by a fresh one; None = never.
    """

    def __init__(self, target: Target, limits: Limits, workers: int = 1, jobs_per_worker: int | None = None) -> None:
        if workers < 1 or limits.seconds <= 0 or (limits.processor or 1) <= 0 or limits.memory_mib < 256:
            raise ValueError("a pool needs at least one worker, a positive deadline and 256 MiB")
        self.target, self.limits, self.workers = target, limits, workers
        self.jobs_per_worker = jobs_per_worker
        self.closed = False
        self._forget()
        _POOLS.add(self)

    def _forget(self) -> None:
        """Begin without processes; what a fork copied of them belongs to its parent."""
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: list[_Worker] = []

    def submit(self, job: Any, seconds: float | None = None) -> Future[Any]:
        """Begin a job: the future raises JobError, RunError where no worker can be started, and RuntimeError where the
        pool was closed.

        Args:
            seconds: in place of those of the limits.
        """
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
        """Return the process ids of the workers that run now."""
        with self._lock:
            return [worker.pid for worker in self._running if worker.pid]

    def rest(self) -> None:
        """End the workers after the jobs that they have; later jobs start new ones."""
        with self._lock:
            for _ in self._threads:
                self._jobs.put(None)
            self._threads, self._jobs = [], queue.SimpleQueue()

    def close(self) -> None:
        """Kill the workers. Jobs that wait or are being done fail with RuntimeError."""
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

    def _serve(self, jobs: queue.SimpleQueue[_Waiting | None]) -> None:
        """Give jobs to one worker after another, until None comes in place of a job."""
        worker: _Worker | None = None
        while (waiting := jobs.get()) is not None:
            job, seconds, future = waiting
            if not future.set_running_or_notify_cancel():
                continue
            try:
                worker = self._ready(worker)
                try:
                    answer = worker.ask(job, seconds)
                except WorkerDied:
                    # Someone else may have killed it, or earlier jobs filled its memory: once more, in a fresh one.
                    worker = self._ready(worker)
                    answer = worker.ask(job, seconds)
                if self.closed:
                    raise RuntimeError
            except BaseException as error:
                future.set_exception(RuntimeError("the pool was closed") if self.closed else error)
            else:
                future.set_result(answer)
        self._retire(worker)

    def _ready(self, worker: _Worker | None) -> _Worker:
        """Return the worker where it can take another job, else a fresh one."""
        if worker is not None and worker.alive and worker.jobs != self.jobs_per_worker:
            return worker
        self._retire(worker)
        try:
            worker = _Worker(self.target, self.limits)
        except OSError as error:  # as of a system that is out of descriptors, processes or memory
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


# Pools that several callers share, the latest last; the workers of those before the last 16 do not wait for jobs.
_SHARED: OrderedDict[str, Pool] = OrderedDict()
_MOST_SHARED, _SHARING = 16, threading.Lock()


def shared_pool(target: Target, limits: Limits, workers: int = 1) -> Pool:
    """Return the pool of this process that runs the target with these limits; make it the first time."""
    key = json.dumps([asdict(target), asdict(limits), workers])
    with _SHARING:
        pool = _SHARED.pop(key, None)
        if pool is None or pool.closed:
            pool = Pool(target, limits, workers)
        _SHARED[key] = pool
        if len(_SHARED) > _MOST_SHARED:
            # Callers may hold it still.
            _SHARED.popitem(last=False)[1].rest()
    return pool


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _after_fork() -> None:
    global _SHARING
    _SHARING = threading.Lock()
    for pool in list(_POOLS):
        pool._forget()


os.register_at_fork(after_in_child=_after_fork)
