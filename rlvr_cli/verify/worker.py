"""The processes that judge: ``python -m rlvr_cli.verify.worker DEADLINE MEMORY_MIB PARENT``. Started by the pool.

The first one loads the algebra and then forks workers on command, each with a socket of its own. A worker reads
``[gold, answer]`` messages from its socket and writes ``[equal, reason]`` messages to it, until its input ends or the
process above it is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import math
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from rlvr_cli.verify.math_answer import UNPARSED_ANSWER, Outcome

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

_HEADER = struct.Struct(">I")
# No message comes near this; more means that the other side writes something else.
_MOST = 1 << 20

_COMMAND = struct.Struct(">cQ")
FORK, REAP = b"f", b"r"


class Closed(Exception):
    """The other side is gone, or does not speak the protocol."""


def send(descriptor: int, message: Any) -> None:
    """Write one message. Raises Closed."""
    body = json.dumps(message).encode()
    data = memoryview(_HEADER.pack(len(body)) + body)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        raise Closed from error


def receive(descriptor: int, seconds: float) -> Any:
    """Read one message that arrives within ``seconds``. Raises TimeoutError, or Closed.

    Whatever is there when the time is up is still read: a reader that was held up itself blames nobody.
    """
    until = time.monotonic() + seconds
    (length,) = _HEADER.unpack(_read(descriptor, _HEADER.size, until))
    if length > _MOST:
        raise Closed
    try:
        return json.loads(_read(descriptor, length, until))
    except ValueError as error:
        raise Closed from error


def command(what: bytes, pid: int = 0) -> bytes:
    """A command as it is sent; FORK goes with the descriptor that the new process is to listen on."""
    return _COMMAND.pack(what, pid)


def receive_command(control: socket.socket) -> tuple[bytes, int, list[int]]:
    """What to do, the process that it is about, and descriptors that came along. Raises Closed."""
    try:
        data, descriptors, _, _ = socket.recv_fds(control, _COMMAND.size, 1)
        while data and len(data) < _COMMAND.size:
            data += control.recv(_COMMAND.size - len(data)) or b""
    except OSError as error:
        raise Closed from error
    if not data:
        raise Closed
    what, pid = _COMMAND.unpack(data)
    return what, pid, list(descriptors)


def readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or the end, within ``seconds``."""
    # Not select, which knows no descriptor above 1,023.
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _read(descriptor: int, size: int, until: float) -> bytes:
    data = b""
    while len(data) < size:
        if not readable(descriptor, max(0.0, until - time.monotonic())):
            raise TimeoutError
        try:
            piece = os.read(descriptor, size - len(data))
        except OSError as error:
            raise Closed from error
        if not piece:
            raise Closed
        data += piece
    return data


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
        send(control.fileno(), f"{type(error).__name__}: {error}")
        return
    gc.collect()
    # Pages that no collector touches are shared with the workers.
    gc.freeze()
    send(control.fileno(), "ready")
    while _something_comes(control.fileno(), parent):
        what, pid, descriptors = receive_command(control)
        if what == FORK:
            pid = _forked(control, descriptors[0], patience, algebra.judge)
        else:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        send(control.fileno(), pid)


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
    except (Closed, TimeoutError, KeyboardInterrupt):
        os._exit(0)
    finally:
        os._exit(1)


def _serve(descriptor: int, above: int, patience: float, judge: Judge) -> None:
    from rlvr_cli.verify.algebra import Unable

    while _something_comes(descriptor, above):
        gold, answer = receive(descriptor, patience)
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
        send(descriptor, [outcome.equal, outcome.reason])


def _something_comes(descriptor: int, parent: int) -> bool:
    while os.getppid() == parent:
        if readable(descriptor, _LOOK):
            return True
    return False


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (Closed, TimeoutError, KeyboardInterrupt):
        sys.exit(0)
