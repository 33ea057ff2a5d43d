"""One worker process as its parent sees it: started, asked with a deadline, killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rlvr_cli.config.errors import RunError
from rlvr_cli.verify import channel
from rlvr_cli.verify.outcome import DIED, TIMEOUT, Outcome

# Importing SymPy takes half a second; a machine under load may take very much longer.
_START_SECONDS = 120.0
_ATTEMPTS = 3
_PACKAGES = str(Path(__file__).parents[2])


class Worker:
    """A process that judges pairs, one at a time.

    It has a session of its own (Ctrl-C in a terminal is the parent's to handle) and ends by itself when the parent is
    gone.

    Args:
        deadline: seconds a pair may take; counted from when the process is ready.
        memory_mib: limit of the process's address space.
    Raises:
        RunError: the process cannot be started, with what it said.
    """

    def __init__(self, deadline: float, memory_mib: int) -> None:
        self.deadline = deadline
        self.memory_mib = memory_mib
        self.asked = 0
        self.process = self._started()

    def ask(self, gold: str, answer: str) -> Outcome:
        """The worker's outcome, or ``timeout`` or ``died``; after either of those the worker is no more."""
        self.asked += 1
        try:
            channel.send(self._stdin, [gold, answer])
            equal, reason = channel.receive(self._stdout, self.deadline)
        except TimeoutError:
            self.kill()
            return TIMEOUT
        except (channel.Closed, ValueError, TypeError):
            self.kill()
            return DIED
        return Outcome(equal, reason)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End the process now, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def _stdin(self) -> int:
        assert self.process.stdin is not None
        return self.process.stdin.fileno()

    @property
    def _stdout(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def _started(self) -> subprocess.Popen[bytes]:
        said = "it ended without a word"
        for _ in range(_ATTEMPTS):
            self.process = self._spawn()
            try:
                message = channel.receive(self._stdout, _START_SECONDS)
            except TimeoutError:
                said = f"it was not ready after {_START_SECONDS:.0f} s"
            except channel.Closed:
                said = f"it ended without a word (memory limit {self.memory_mib} MiB)"
            else:
                if message == "ready":
                    return self.process
                said = str(message)
            self.kill()
        raise RunError(f"A process that judges mathematics cannot be started: {said}. `rlvr doctor` checks packages.")

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        paths = [_PACKAGES, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        arguments = [str(self.deadline), str(self.memory_mib), str(os.getpid())]
        return subprocess.Popen(
            # -P: a file in the current folder that is called like a module is not imported.
            [sys.executable, "-P", "-m", "rlvr_cli.verify.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment,
            start_new_session=True,
        )
