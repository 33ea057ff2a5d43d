"""A pool of worker processes that answer jobs, JSON in and JSON out, and may be killed over any of them.

    pool = Pool(Target("package.module:make", settings), Limits(seconds=2.0, memory_mib=1024), workers=2)
    pool.submit(job).result()          # raises JobTimeout, WorkerDied or JobFailed

Not ``multiprocessing``: its spawned processes import the main script again, so that a user's script without
``if __name__ == "__main__"`` would start itself, and `rlvr` itself would load its whole command line in every worker.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlvr_cli.core.errors import RunError
from rlvr_cli.workers import child

# A machine under load may take very long to import a library.
_START_SECONDS, _REPLY_SECONDS = 120.0, 30.0
# A system that is out of descriptors, processes or memory may have some again after a pause.
_ATTEMPTS, _PAUSE = 3, 0.5
# A wait is made of such pieces. What one of them takes longer, this process stood still, which counts against no job.
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
    """What workers run.

    Attributes:
        function: `module:function`; called with ``settings`` (a JSON value) it returns the function that answers jobs.
        preload: call it once in the supervisor, before workers are forked: for code of this project that is slow to
            import and starts no threads. Otherwise every worker calls it.
        what: what the workers do, as in `judges mathematics`.
    """

    function: str
    settings: Any = None
    preload: bool = False
    what: str = "answers jobs"


@dataclass(frozen=True)
class Limits:
    """What a job may use of its worker.

    Attributes:
        seconds: by the clock; time in which the calling process is stopped does not count.
        processor: seconds of a processor; None = any.
        memory_mib: address space of a preloaded target, otherwise data.
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
    """A worker with its supervisor, owned by one thread. Raises RunError where it cannot be started, and JobError."""

    def __init__(self, target: Target, limits: Limits) -> None:
        self.target, self.limits, self.jobs = target, limits, 0
        self.pid = 0
        self._control, theirs = socket.socketpair()
        paths = filter(None, (_PACKAGES, os.environ.get("PYTHONPATH")))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        if not target.preload:
            # Code of the user's may go through a set of words: in every process in the same order.
            environment.setdefault("PYTHONHASHSEED", "0")
        with theirs:
            self._supervisor = subprocess.Popen(
                # -P: a file in the current folder that is called like a module is not imported.
                [sys.executable, "-P", "-m", "rlvr_cli.workers.child"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if target.preload else None,
                env=environment,
                start_new_session=True,
            )
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Load a preloaded target, and fork the worker."""
        spec = {"function": self.target.function, "settings": self.target.settings}
        spec |= {"preload": self.target.preload, "memory_mib": self.limits.memory_mib}
        try:
            child.send(self._control, spec, _REPLY_SECONDS)
            kind, *text = child.receive(self._control, _START_SECONDS)
        except (TimeoutError, child.Closed):
            kind, text = "error", [f"it ended or hangs (memory limit {self.limits.memory_mib} MiB)"]
        if kind != "ready":
            raise RunError(
                f"A process that {self.target.what} cannot be started: {text[0]}. `rlvr doctor` checks packages."
            )
        self.fork()

    def fork(self) -> None:
        """Have the supervisor fork a worker, which loads its target."""
        self._control.settimeout(_REPLY_SECONDS)
        for attempt in range(_ATTEMPTS):
            time.sleep(_PAUSE if attempt else 0)
            try:
                child.send(self._control, child.FORK, _REPLY_SECONDS)
                data, descriptors, _, _ = socket.recv_fds(self._control, 8, 1)
            except (OSError, child.Closed):
                raise WorkerDied("its supervisor ended") from None
            if len(data) < 8:
                raise WorkerDied("its supervisor ended")
            self._socket = socket.socket(fileno=descriptors[0])
            self.pid, self.jobs = struct.unpack(">q", data)[0], 0
            if self.pid:
                break
        else:
            raise RunError(f"A process that {self.target.what} cannot be started: the system has no process left.")
        if not self.target.preload:
            try:
                self._answer(self.limits.loading)
            except JobError as error:
                error.loading = True
                self.end()
                raise

    @property
    def alive(self) -> bool:
        """Whether the worker waits for a job. It sends nothing then, so that anything to be read is its end."""
        if self._socket is None:
            return False
        self._socket.settimeout(0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def ask(self, job: Any, seconds: float | None) -> Any:
        """Return the answer to a job. After JobTimeout and WorkerDied there is no worker."""
        assert self._socket is not None
        self.jobs += 1
        try:
            child.send(self._socket, [job, self.limits.processor], self.limits.loading)
        except TimeoutError:
            self.end()
            raise JobTimeout from None
        except child.Closed:
            raise self._died() from None
        return self._answer(self.limits.seconds if seconds is None else seconds)

    def _answer(self, seconds: float) -> Any:
        assert self._socket is not None
        left = seconds
        try:
            while True:
                began, piece = time.monotonic(), max(0.0, min(left, _PIECE))
                self._socket.settimeout(max(piece, 0.001))
                try:
                    self._socket.recv(1, socket.MSG_PEEK)
                    break
                except TimeoutError:
                    left -= min(time.monotonic() - began, piece + _PIECE)
                    if left <= 0:
                        raise
            kind, content = child.receive(self._socket, _REPLY_SECONDS)
        except TimeoutError:
            self.end()
            raise JobTimeout from None
        except (OSError, child.Closed, ValueError, TypeError):
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
        """Kill the worker with everything that it started; its exit code, where the supervisor knows it."""
        if self._socket is None:
            return None
        self._socket.close()
        self._socket, self.pid = None, 0
        try:
            child.send(self._control, child.REAP, _REPLY_SECONDS)
            return int(child.receive(self._control, _REPLY_SECONDS))
        except (TimeoutError, child.Closed):
            self.close()
            return None

    @property
    def usable(self) -> bool:
        """Whether the supervisor can fork another worker."""
        return self._supervisor.poll() is None and self._control.fileno() >= 0

    def close(self) -> None:
        """End worker and supervisor, which kills what is left when its socket closes."""
        self.interrupt()
        with contextlib.suppress(OSError):
            self._control.close()
        try:
            self._supervisor.wait(_REPLY_SECONDS)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()

    def interrupt(self) -> None:
        """End a job from another thread: both ends of the supervisor's socket see it closed, and so does the job's."""
        for one in (self._control, self._socket):
            with contextlib.suppress(OSError, AttributeError):
                one.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]


def _ending(status: int | None) -> str:
    if status is None:
        return "its process ended"
    if status >= 0:
        return f"it ended its process with exit code {status}"
    with contextlib.suppress(ValueError):
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process was ended by signal {-status}"


@dataclass(frozen=True)
class _Job:
    job: Any
    seconds: float | None
    future: Future[Any] = field(default_factory=Future)


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

    def submit(self, job: Any, seconds: float | None = None) -> Future[Any]:
        """Begin a job: the future raises JobError, RunError where no worker can be started, and RuntimeError where the
        pool was closed.

        Args:
            seconds: in place of those of the limits.
        """
        waiting = _Job(job, seconds)
        with self._lock:
            if self.closed:
                raise RuntimeError("the pool is closed")
            # A thread that could not be started, or whose start was interrupted, serves nobody.
            self._threads[:] = [thread for thread in self._threads if thread.is_alive()]
            if len(self._threads) < self.workers:
                thread = threading.Thread(target=self._serve, name=f"workers-{len(self._threads)}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    if not self._threads:
                        raise RunError(f"No thread for a process that {self.target.what}: {error}.") from error
                else:
                    self._threads.append(thread)
            self._jobs.put(waiting)
        return waiting.future

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the workers that run now."""
        with self._lock:
            return [worker.pid for worker in self._running if worker.pid]

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forget(self) -> None:
        """Begin without processes; what a fork copied of them belongs to its parent."""
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: list[_Worker] = []

    def _serve(self) -> None:
        """Give jobs to one worker after another, until the pool is closed."""
        worker: _Worker | None = None
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                worker = self._ready(worker)
                try:
                    answer = worker.ask(job.job, job.seconds)
                except WorkerDied:
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

    def _ready(self, worker: _Worker | None) -> _Worker:
        if self.closed:
            raise RuntimeError("the pool was closed")
        if worker is not None and worker.usable:
            if worker.alive and (self.jobs_per_worker is None or worker.jobs < self.jobs_per_worker):
                return worker
            worker.end()
            if worker.usable:
                worker.fork()
                return worker
        self._retire(worker)
        worker = self._made()
        with self._lock:
            self._running.append(worker)
            closed = self.closed
        try:
            if closed:
                raise RuntimeError("the pool was closed")
            worker.start()
        except BaseException:
            self._retire(worker)
            raise
        return worker

    def _made(self) -> _Worker:
        for attempt in range(_ATTEMPTS):
            try:
                return _Worker(self.target, self.limits)
            except OSError as error:
                reason = str(error)
                time.sleep(_PAUSE if attempt < _ATTEMPTS - 1 else 0)
        raise RunError(f"A process that {self.target.what} cannot be started: {reason}.")

    def _retire(self, worker: _Worker | None) -> None:
        if worker is not None:
            worker.close()
            with self._lock:
                if worker in self._running:
                    self._running.remove(worker)


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
