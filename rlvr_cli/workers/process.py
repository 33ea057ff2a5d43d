"""The processes that answer jobs, as their parent sees them: a nursery, and the workers that it forks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.workers import child

# Importing SymPy takes half a second; a machine under load may take very much longer.
_START_SECONDS = 120.0
# Forking and reaping take milliseconds.
_REPLY_SECONDS = 20.0
_ATTEMPTS = 3
# A system that is out of descriptors, processes or memory may have some again after this.
_PAUSE = 0.5
# Nobody waits longer than this at once. What is more of a wait is not held against a job: its parent stood still.
_LOOK = 1.0
# How often it is looked whether a job starts processes without end, and how many it may have.
_COUNT, PROCESSES = 0.25, 256
# What answers may take this long to load, however little time its jobs have: the project itself is imported then.
LOADING = 30.0
_PACKAGES = str(Path(__file__).parents[2])


class NoAnswer(Exception):
    """A worker has no answer to a job; ``str()`` is the end of a sentence about the job.

    Attributes:
        loading: whether there was no job yet: the worker was loading what answers.
    """

    loading = False


class Late(NoAnswer):
    """It took too long; the worker is no more."""


class Died(NoAnswer):
    """The worker ended in the middle of it."""


class Failed(NoAnswer):
    """It raised an exception, which is the text; the worker goes on."""


@dataclass(frozen=True)
class Judge:
    """What workers do.

    Attributes:
        name: what makes the function from a job (a JSON value) to an answer (another): `module:function`, or
            `FILE.py:NAME`.
        settings: what that is called with, once in each worker; a JSON value.
        preloaded: called once for all workers, before they are forked: for code of the project, which is slow to load
            and starts no threads. Else every worker calls it, in a session of its own, and what it and the jobs print
            is on standard error.
        what: what the workers do, for people: `judges mathematics`.
    """

    name: str
    settings: Any = None
    preloaded: bool = False
    what: str = "answers jobs"


@dataclass(frozen=True)
class Limits:
    """What a job may use of its worker.

    Attributes:
        seconds: of the clock, the calling process's own stops aside; also for loading, where those are more.
        processor: seconds of a processor; None = any.
        memory_mib: address space of a worker that is preloaded, else data.
        load_seconds: of the clock, in which a worker loads what answers, where a job has fewer; None = LOADING.
    """

    seconds: float
    processor: float | None = None
    memory_mib: int = 1024
    load_seconds: float | None = None

    @property
    def loading(self) -> float:
        """Seconds by the clock in which a worker loads what answers."""
        return max(self.seconds, LOADING if self.load_seconds is None else self.load_seconds)


class ForkServerHandle:
    """A process that answers nothing; it forks the processes that do, in a few milliseconds.

    It has a session of its own (Ctrl-C in a terminal is the parent's to handle) and ends by itself when the parent is
    gone, and its workers with it. It starts when a worker is first asked for.
    """

    def __init__(self, judge: Judge, limits: Limits) -> None:
        self.judge, self.limits = judge, limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._closed = False

    def fork(self) -> tuple[int, socket.socket]:
        """A new worker: its process id and the socket it listens on. Raises RunError where none can be started."""
        said = "what should fork it ends every time"
        with self._lock:
            for attempt in range(_ATTEMPTS):
                if attempt:
                    time.sleep(_PAUSE)
                try:
                    control = self._started()
                    ours, theirs = socket.socketpair()
                except OSError as error:
                    said = str(error)
                    continue
                ours.setblocking(False)
                with theirs:
                    pid = self._reply(control, child.FORK, descriptors=[theirs.fileno()])
                if pid:
                    return pid, ours
                ours.close()
                if pid == 0:
                    said = "the system has no process or no memory left"
        raise self._unstarted(said)

    def reap(self, pid: int) -> int | None:
        """Have a worker that was killed removed from the system's table of processes.

        Returns its exit code, or minus the number of the signal that ended it; None where nobody knows.
        """
        with self._lock:
            return None if self._control is None else self._reply(self._control, child.REAP, pid)

    def close(self) -> None:
        """End the process, and with it those that it forked; it starts no more."""
        self._closed = True
        # Whoever waits for it with the lock held sees it end.
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._ended()

    def _reply(self, control: socket.socket, what: bytes, pid: int = 0, descriptors: Sequence[int] = ()) -> int | None:
        """What the process says to a command. One that says nothing is killed from outside, or out of memory."""
        try:
            if descriptors:
                socket.send_fds(control, [child.command(what, pid)], descriptors)
            else:
                control.sendall(child.command(what, pid))
            return int(child.receive(control.fileno(), _REPLY_SECONDS))
        except (OSError, child.Closed, TimeoutError):
            self._ended()
            return None

    def _ended(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.close()
        self._process = self._control = None

    def _started(self) -> socket.socket:
        if self._process is not None and self._process.poll() is None and self._control is not None:
            return self._control
        said = "it ended without a word"
        for _ in range(_ATTEMPTS):
            self._ended()
            if self._closed:
                break
            self._control, theirs = socket.socketpair()
            with theirs:
                self._process = self._spawned(theirs)
            try:
                child.send(self._control.fileno(), self._wanted())
                message = child.receive(self._control.fileno(), _START_SECONDS)
            except TimeoutError:
                said = f"it was not ready after {_START_SECONDS:.0f} s"
            except child.Closed:
                said = f"it ended without a word (memory limit {self.limits.memory_mib} MiB)"
            else:
                if message == "ready":
                    return self._control
                said = str(message)
        self._ended()
        raise self._unstarted(f"{said}. `rlvr doctor` checks packages")

    def _unstarted(self, said: str) -> RunError:
        return RunError(f"A process that {self.judge.what} cannot be started: {said}.")

    def _wanted(self) -> dict[str, Any]:
        return {
            "judge": self.judge.name,
            "settings": self.judge.settings,
            "preloaded": self.judge.preloaded,
            "patience": self.limits.seconds,
            "memory_mib": self.limits.memory_mib,
            "parent": os.getpid(),
        }

    def _spawned(self, control: socket.socket) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        paths = [_PACKAGES, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        if not self.judge.preloaded:
            # Code of the user's may go through a set of words: in every process in the same order.
            environment.setdefault("PYTHONHASHSEED", "0")
        return subprocess.Popen(
            # -P: a file in the current folder that is called like a module is not imported.
            [sys.executable, "-P", "-m", "rlvr_cli.workers.child"],
            stdin=control.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if self.judge.preloaded else None,
            env=environment,
            start_new_session=True,
        )


class Worker:
    """A process that answers jobs, one at a time.

    Raises RunError when it cannot be started, and NoAnswer where it cannot load what answers.
    """

    def __init__(self, nursery: ForkServerHandle) -> None:
        self.nursery = nursery
        self.asked = 0
        self._gone = False
        self.pid, self._socket = nursery.fork()
        if not nursery.judge.preloaded:
            try:
                self._answer(None, nursery.limits.loading)
            except NoAnswer as error:
                error.loading = True
                self.kill()
                raise

    def ask(self, job: Any, seconds: float | None = None) -> Any:
        """The answer to ``job``. Raises NoAnswer; after ``Late`` and ``Died`` the worker is no more.

        Args:
            seconds: in place of those of the limits.
        """
        self.asked += 1
        try:
            spent = self._processor_seconds()
            child.send(self._socket.fileno(), job, self.nursery.limits.seconds)
        except TimeoutError:
            self.kill()
            raise Late from None
        except child.Closed:
            raise Died(_ending(self.kill())) from None
        return self._answer(spent, seconds)

    @property
    def alive(self) -> bool:
        """Whether the process still runs. While it has no job it says nothing, so what can be read is its end."""
        return not self._gone and not child.readable(self._socket.fileno(), 0)

    def stop(self) -> None:
        """Kill the process, from any thread; the caller sees it die."""
        # The number is its own: what is dead stays in the table until it is reaped. Unless what forked it is dead too:
        # then its socket has ended, and the number may be another's.
        if not self._gone and not self._over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def kill(self) -> int | None:
        """End the process now, with all that it started, and wait until it is gone; see ``ForkServerHandle.reap``."""
        if self._gone:
            return None
        self.stop()
        self._gone = True
        with contextlib.suppress(OSError):
            self._socket.close()
        return self.nursery.reap(self.pid)

    def _answer(self, spent: float | None, seconds: float | None = None) -> Any:
        """What the process says next.

        Args:
            spent: its seconds of a processor before the job; None = they are not counted.
        """
        try:
            self._wait(spent, self.nursery.limits.seconds if seconds is None else seconds)
            kind, said = child.receive(self._socket.fileno(), self.nursery.limits.seconds)
        except TimeoutError:
            self.kill()
            raise Late from None
        except (child.Closed, ValueError, TypeError):
            raise Died(_ending(self.kill())) from None
        except BaseException:
            # What it says later would be taken for the next job's answer.
            self.kill()
            raise
        if kind != "ok":
            raise Failed(said)
        return said

    def _wait(self, spent: float | None, seconds: float) -> None:
        """Until it says something. Raises TimeoutError when it has had its time, Failed for too many processes."""
        processor = self.nursery.limits.processor if spent is not None else None
        left, worked = seconds, float("inf") if processor is None else processor
        look = _LOOK if self.nursery.judge.preloaded else _COUNT
        while True:
            before, most = time.monotonic(), max(0.0, min(left, worked, look))
            if child.readable(self._socket.fileno(), most):
                return
            left -= min(time.monotonic() - before, most + _LOOK)
            if processor is not None and spent is not None:
                worked = processor - (self._processor_seconds() - spent)
            if left <= 0 or worked <= 0:
                raise TimeoutError
            if not self.nursery.judge.preloaded and self._processes() > PROCESSES:
                self.kill()
                raise Failed(f"it started more than {PROCESSES} processes, which were ended")

    def _processes(self) -> int:
        """How many there are of its session, which it and all that it starts are of."""
        import psutil  # here, so that commands that judge nothing start sooner

        count = 0
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                count += os.getsid(pid) == self.pid
        return count

    def _processor_seconds(self) -> float:
        if self.nursery.limits.processor is None:
            return 0.0
        import psutil  # here, so that commands that judge nothing start sooner

        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.NoSuchProcess:
            raise child.Closed from None
        return float(times.user + times.system)

    def _over(self) -> bool:
        """Whether its end of the socket is closed, and all that it said has been read."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


def _ending(code: int | None) -> str:
    if code is None:
        return "its process ended"
    if code >= 0:
        return f"it ended its process with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process was ended by signal {-code}"
