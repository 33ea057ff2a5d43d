"""The processes that judge, as their parent sees them: a nursery that has loaded the algebra, and its forks."""

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
from pathlib import Path

import psutil

from rlvr_cli.core.errors import RunError
from rlvr_cli.verify import worker
from rlvr_cli.verify.math_answer import DIED, TIMEOUT, Outcome

# Importing SymPy takes half a second; a machine under load may take very much longer.
_START_SECONDS = 120.0
# Forking and reaping take milliseconds.
_REPLY_SECONDS = 20.0
_ATTEMPTS = 3
# A system that is out of descriptors, processes or memory may have some again after this.
_PAUSE = 0.5
# A worker that waits for a processor has not used its time; longer than this many deadlines nobody waits for it.
PATIENCE = 5
_PACKAGES = str(Path(__file__).parents[2])


class Nursery:
    """A process that has imported SymPy and judges nothing; it forks the processes that do, in a few milliseconds.

    It has a session of its own (Ctrl-C in a terminal is the parent's to handle) and ends by itself when the parent is
    gone, and its workers with it. It starts when a worker is first asked for.

    Args:
        deadline: seconds of a processor that a pair may take.
        memory_mib: limit of the address space of each process.
    """

    def __init__(self, deadline: float, memory_mib: int) -> None:
        self.deadline = deadline
        self.memory_mib = memory_mib
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
                with theirs:
                    pid = self._reply(control, worker.FORK, descriptors=[theirs.fileno()])
                if pid:
                    return pid, ours
                ours.close()
                if pid == 0:
                    said = "the system has no process or no memory left"
        raise RunError(f"A process that judges mathematics cannot be started: {said}.")

    def reap(self, pid: int) -> None:
        """Have a worker that was killed removed from the system's table of processes."""
        with self._lock:
            if self._control is not None:
                self._reply(self._control, worker.REAP, pid)

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
                socket.send_fds(control, [worker.command(what, pid)], descriptors)
            else:
                control.sendall(worker.command(what, pid))
            return int(worker.receive(control.fileno(), _REPLY_SECONDS))
        except (OSError, worker.Closed, TimeoutError):
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
                message = worker.receive(self._control.fileno(), _START_SECONDS)
            except TimeoutError:
                said = f"it was not ready after {_START_SECONDS:.0f} s"
            except worker.Closed:
                said = f"it ended without a word (memory limit {self.memory_mib} MiB)"
            else:
                if message == "ready":
                    return self._control
                said = str(message)
        self._ended()
        raise RunError(f"A process that judges mathematics cannot be started: {said}. `rlvr doctor` checks packages.")

    def _spawned(self, control: socket.socket) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        paths = [_PACKAGES, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        arguments = [str(PATIENCE * self.deadline), str(self.memory_mib), str(os.getpid())]
        return subprocess.Popen(
            # -P: a file in the current folder that is called like a module is not imported.
            [sys.executable, "-P", "-m", "rlvr_cli.verify.worker", *arguments],
            stdin=control.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


class Worker:
    """A process that judges pairs, one at a time. Raises RunError when it cannot be started."""

    def __init__(self, nursery: Nursery) -> None:
        self.nursery = nursery
        self.asked = 0
        self._gone = False
        self.pid, self._socket = nursery.fork()

    def ask(self, gold: str, answer: str) -> Outcome:
        """The worker's outcome, or ``timeout`` or ``died``; after either of those the worker is no more."""
        self.asked += 1
        try:
            spent = self._processor_seconds()
            worker.send(self._socket.fileno(), [gold, answer])
            self._wait(spent)
            equal, reason = worker.receive(self._socket.fileno(), self.nursery.deadline)
        except TimeoutError:
            self.kill()
            return TIMEOUT
        except (worker.Closed, ValueError, TypeError, psutil.NoSuchProcess):
            self.kill()
            return DIED
        except BaseException:
            # What it says later would be taken for the next pair's outcome.
            self.kill()
            raise
        return Outcome(equal, reason)

    @property
    def alive(self) -> bool:
        """Whether the process still runs. While it judges nothing it says nothing, so what can be read is its end."""
        return not self._gone and not worker.readable(self._socket.fileno(), 0)

    def stop(self) -> None:
        """Kill the process, from any thread; whoever asked it sees it die."""
        # The number is its own: what is dead stays in the table until it is reaped. Unless what forked it is dead too:
        # then its socket has ended, and the number may be another's.
        if not self._gone and not self._over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the process now, and wait until it is gone."""
        if self._gone:
            return
        self.stop()
        self._gone = True
        with contextlib.suppress(OSError):
            self._socket.close()
        self.nursery.reap(self.pid)

    def _wait(self, spent: float) -> None:
        """Until it says something. Raises TimeoutError when it has had the deadline's seconds of a processor.

        Args:
            spent: its seconds of a processor before the pair.
        """
        until = time.monotonic() + PATIENCE * self.nursery.deadline
        left = self.nursery.deadline
        while not worker.readable(self._socket.fileno(), max(0.0, min(left, until - time.monotonic()))):
            left = self.nursery.deadline - (self._processor_seconds() - spent)
            if left <= 0 or time.monotonic() >= until:
                raise TimeoutError

    def _processor_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def _over(self) -> bool:
        """Whether its end of the socket is closed, and all that it said has been read."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
