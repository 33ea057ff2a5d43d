"""A server that rlvr starts, watches and ends.

    python -m rlvr_cli.training.vllm.child PARENT FOLDER COMMAND...

runs a command in a process group of its own while PARENT lives.

What watches must outlive a parent that was killed, so it is a process. When the parent has gone, has closed this
process's standard input, or the command has ended, the whole group is ended and FOLDER deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import check_no_link

SECONDS_BETWEEN_NOTES = 10.0
_TICK = 0.3
# Of the process that watches: seconds between two looks, and how long what it ends has.
_LOOK, _GRACE, _GRACE_OF_THE_OTHERS = 0.2, 10.0, 2.0
# What precedes the text in a line of vLLM's: which process wrote it, level, time, place.
_PREFIX = re.compile(r"^(\([^()]*pid=\d+\)\s*)?((ERROR|INFO|WARNING|DEBUG)\s+[\d-]+\s[\d:]+\s(\[[^\]]*\]\s?)?)?")
_ERROR = re.compile(r"^\s*(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]*(?:Error|Exception|error): *\S")
# They only say that something went wrong before.
_ECHO = re.compile(r"Engine core initialization failed|EngineDeadError|encountered an issue|Failed core proc")
_TAIL_BYTES = 20_000


class Child:
    """A command that lives no longer than this process, in whatever way this process ends.

    Args:
        output: file that gets what it prints. folder: deleted when it has ended. environment: all of it.
    """

    def __init__(self, command: Sequence[str], output: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.output = output
        check_no_link(output)
        with output.open("ab") as stream:
            self._began = stream.tell()
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid()), str(folder), *command],
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def failure(self, *, wait: float = 0.0) -> str | None:
        """How it ended, with the server's own last error; None while it runs after ``wait`` seconds."""
        try:
            code = self._keeper.wait(wait)
        except subprocess.TimeoutExpired:
            return None
        how = f"killed by signal {code - 128}" if code > 128 else f"exit code {code}"
        return f"the vLLM server has ended ({how}): {self.last_error()}. Its output: {self.output}"

    def check(self) -> None:
        """Raise RunError if it has ended."""
        if why := self.failure():
            raise RunError(why)

    def last_error(self) -> str:
        """What it printed that says why it failed: its last error, else its last line.

        All is read, however long: once its engine is dead, vLLM 0.31 repeats the echo for every request, in megabytes.
        """
        cause = echo = last = ""
        with self.output.open("rb") as stream:
            stream.seek(self._began)
            for raw in stream:
                if line := _text(raw):
                    last = line
                    if _ERROR.match(line):
                        cause, echo = (cause, line) if _ECHO.search(line) else (line, echo)
        return (cause or echo or last or "it printed nothing").rstrip(".")[:600]

    def _last_line(self) -> str:
        with self.output.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(self._began, size - _TAIL_BYTES))
            return next((text for raw in reversed(stream.readlines()) if (text := _text(raw))), "no output yet")

    def wait_until(self, ready: Callable[[], bool], seconds: float, say: Callable[[str], None]) -> None:
        """Wait until it is ``ready``, telling how far it is. Raises RunError when it ends, or takes too long."""
        began = noted = time.monotonic()
        while not ready():
            self.check()
            now = time.monotonic()
            if now - began > seconds:
                raise RunError(
                    f"the vLLM server did not answer within {seconds:g} s (rollout.vllm.startup_timeout). Its output: "
                    f"{self.output}"
                )
            if now - noted > SECONDS_BETWEEN_NOTES:
                noted = now
                say(f"vLLM server: starting, {now - began:.0f} s: {self._last_line()[:160]}")
            time.sleep(_TICK)

    def end(self) -> None:
        """End it and what it started; returns when all is gone."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait()


def _text(line: bytes) -> str:
    # A progress bar writes itself again and again into one line.
    newest = line.decode("utf-8", errors="replace").rstrip().rpartition("\r")[2]
    return _PREFIX.sub("", newest).strip()


def _watch() -> int:
    """End the command with the parent; the command's exit code, as shells report it."""
    parent, folder, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A cluster and a terminal send them to everybody; the parent decides. Not SIG_IGN, which the command inherits.
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while child.poll() is None and os.getppid() == int(parent) and not select.select([0], [], [], _LOOK)[0]:
        pass
    _end(child)
    shutil.rmtree(folder, ignore_errors=True)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end(child: subprocess.Popen[bytes]) -> None:
    """First politely, and the command alone: vLLM ends its processes and removes its shared memory then."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
            _wait_for_group(child.pid, _GRACE_OF_THE_OTHERS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _wait_for_group(group: int, seconds: float) -> None:
    last = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < last:
            os.killpg(group, 0)
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(_watch())
