"""`python keeper.py PARENT FOLDER COMMAND...`: run a command in a process group of its own, while PARENT lives.

What watches must outlive a parent that was killed, so it is a process. When the parent has gone, has closed this
process's standard input, or the command has ended, the whole group is ended and FOLDER deleted. Standard library only:
it starts within a moment and takes no memory to speak of.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time

TICK, GRACE, GRACE_OF_THE_OTHERS = 0.2, 10.0, 2.0


def main() -> int:
    """The command's exit code, as shells report it."""
    parent, folder, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A cluster and a terminal send them to everybody; the parent decides. Not SIG_IGN, which the command inherits.
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while child.poll() is None and os.getppid() == int(parent) and not select.select([0], [], [], TICK)[0]:
        pass
    _end(child)
    shutil.rmtree(folder, ignore_errors=True)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end(child: subprocess.Popen[bytes]) -> None:
    """First politely, and the command alone: vLLM ends its processes and removes its shared memory then."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
            _wait_for_group(child.pid, GRACE_OF_THE_OTHERS)
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
    sys.exit(main())
