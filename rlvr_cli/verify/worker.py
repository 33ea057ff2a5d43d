"""The processes that judge: ``python -m rlvr_cli.verify.worker DEADLINE MEMORY_MIB PARENT``. Started by the pool.

The first one loads the algebra and then forks workers on command, each with a socket of its own. A worker reads
``[gold, answer]`` messages from its socket and writes ``[equal, reason]`` messages to it, until its input ends or the
process above it is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable

from rlvr_cli.verify import channel
from rlvr_cli.verify.outcome import UNPARSED_ANSWER, Outcome

# How often an idle process looks whether its parent is still there, seconds. The end of input usually says it first.
_LOOK = 5.0
_DIE_WITH_PARENT = 1
# What importing takes is not held against pairs: a process could not start otherwise. What the parser learns of common
# forms is learnt once for all workers.
_WARM = [
    ("1/2", r"\frac{2}{4}"),
    ("x^2-1", "(x-1)(x+1)"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("(1,2)", "[1,2)"),
    ("5", "x=5"),
    (r"\frac{\pi}{2}", r"\{1,2\}"),
    (r"6\text{ cm}", r"50\%"),
    ("y=3x^{2}+6x-1", r"x\in(-\infty,3]\cup[5,7)"),
]

Judge = Callable[[str, str], Outcome]


def main(arguments: list[str]) -> None:
    """Load the algebra, then fork and reap workers until there is nobody to serve."""
    patience, memory_mib, parent = float(arguments[0]), int(arguments[1]), int(arguments[2])
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Where it is ignored, the number of a dead worker is free before anyone reaps it.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A cluster sends SIGTERM to every process of a job. The training saves on it, and wants its answers until then.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    limit = memory_mib * 2**20
    if sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        from rlvr_cli.verify import algebra

        for gold, answer in _WARM:
            algebra.judge(gold, answer)
    except Exception as error:
        channel.send(control.fileno(), f"{type(error).__name__}: {error}")
        return
    gc.collect()
    # Pages that no collector touches are shared with the workers.
    gc.freeze()
    channel.send(control.fileno(), "ready")
    while _something_comes(control.fileno(), parent):
        what, pid, descriptors = channel.receive_command(control)
        if what == channel.FORK:
            pid = _forked(control, descriptors[0], patience, algebra.judge)
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        channel.send(control.fileno(), pid)


def _forked(control: socket.socket, descriptor: int, patience: float, judge: Judge) -> int:
    """The new worker's process id, or 0 where the system gives none."""
    above = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(descriptor)
        return 0
    if pid:
        os.close(descriptor)
        return pid
    # Whatever happens, this process must not go on as its parent does.
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        control.close()
        _serve(descriptor, above, patience, judge)
    except (channel.Closed, TimeoutError, KeyboardInterrupt):
        os._exit(0)
    finally:
        os._exit(1)


def _serve(descriptor: int, above: int, patience: float, judge: Judge) -> None:
    from rlvr_cli.verify.algebra import Unable

    while _something_comes(descriptor, above):
        gold, answer = channel.receive(descriptor, patience)
        # The pool kills a late worker. Should the pool be dead or stopped by then, the alarm does.
        signal.alarm(math.ceil(patience) + 2)
        try:
            outcome = judge(gold, answer)
        except (MemoryError, Unable):
            os._exit(1)
        except Exception:
            # A recursion too deep, or a text that nobody thought of: no answer that can be read, and no reason to die.
            outcome = UNPARSED_ANSWER
        signal.alarm(0)
        channel.send(descriptor, [outcome.equal, outcome.reason])


def _something_comes(descriptor: int, parent: int) -> bool:
    while os.getppid() == parent:
        if channel.readable(descriptor, _LOOK):
            return True
    return False


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (channel.Closed, TimeoutError, KeyboardInterrupt):
        sys.exit(0)
