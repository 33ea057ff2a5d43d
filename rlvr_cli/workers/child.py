"""The processes that answer jobs: ``python -m rlvr_cli.workers.child``, started by a pool.

The first one hears what is wanted from its standard input and then forks workers on command, each with a socket of its
own. A worker reads jobs from its socket and writes ``["ok", answer]`` or ``["error", text]``, until its input ends or
the process above it is gone. What jobs print never gets into a socket.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
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
from pathlib import Path
from typing import Any

# A machine under load may let a process wait that long.
_PATIENCE = 120.0
# How often an idle process looks whether its parent is still there, seconds. The end of input usually says it first.
_LOOK = 5.0
_DIE_WITH_PARENT = 1

Answer = Callable[[Any], Any]

_HEADER = struct.Struct(">I")
# No message comes near this; more means that the other side writes something else.
_MOST = 1 << 30

_COMMAND = struct.Struct(">cQ")
FORK, REAP = b"f", b"r"


class Closed(Exception):
    """The other side is gone, or does not speak the protocol."""


def send(descriptor: int, message: Any, seconds: float | None = None) -> None:
    """Write one message, within ``seconds`` where the descriptor does not block. Raises Closed, or TimeoutError."""
    body = json.dumps(message).encode()
    data = memoryview(_HEADER.pack(len(body)) + body)
    until = None if seconds is None else time.monotonic() + seconds
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            if not _ready(descriptor, select.POLLOUT, None if until is None else max(0.0, until - time.monotonic())):
                raise TimeoutError from None
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
    return _ready(descriptor, select.POLLIN, seconds)


def _ready(descriptor: int, event: int, seconds: float | None) -> bool:
    # Not select, which knows no descriptor above 1,023.
    poller = select.poll()
    poller.register(descriptor, event)
    return bool(poller.poll(None if seconds is None else seconds * 1000))


def _read(descriptor: int, size: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not readable(descriptor, max(0.0, until - time.monotonic())):
            raise TimeoutError
        try:
            piece = os.read(descriptor, min(size - len(data), 1 << 20))
        except OSError as error:
            raise Closed from error
        if not piece:
            raise Closed
        data += piece
    return bytes(data)


class ForkServer:
    """Forks workers and reaps them until there is nobody to serve.

    Args:
        wanted: `judge`, the name of what makes the function that answers jobs (`module:function`, or `FILE.py:NAME`),
            and `settings`, what that is called with; `preloaded`, whether that is done once, before any fork (else
            every worker does it, with a session of its own, and its standard output is the standard error of the
            caller); `patience`, the seconds in which a message arrives; `memory_mib`; `parent`, the process to serve.
    """

    def __init__(self, control: socket.socket, wanted: dict[str, Any]) -> None:
        self.control, self.wanted = control, wanted
        self.preloaded: bool = wanted["preloaded"]
        self.patience: float = wanted["patience"]
        self.workers: set[int] = set()

    def serve(self) -> None:
        """Until the parent is gone; the workers go with it."""
        answer: Answer | None = None
        if self.preloaded:
            # Of all that is mapped, libraries too: what the project itself loads needs little.
            _limit(resource.RLIMIT_AS, self.wanted["memory_mib"])
            try:
                answer = _loaded(self.wanted)
            except Exception as error:
                send(self.control.fileno(), f"{type(error).__name__}: {error}")
                return
            gc.collect()
            # Pages that no collector touches are shared with the workers.
            gc.freeze()
        send(self.control.fileno(), "ready")
        try:
            while _something_comes(self.control.fileno(), self.wanted["parent"]):
                what, pid, descriptors = receive_command(self.control)
                send(self.control.fileno(), self._fork(descriptors[0], answer) if what == FORK else self._reap(pid))
        finally:
            for pid in self.workers:
                self._kill_group(pid)

    def _kill_group(self, pid: int) -> None:
        # Who is not reaped keeps its number, and its group's.
        if not self.preloaded:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def _reap(self, pid: int) -> int:
        """How a worker that is dead or dying ended: its exit code, or minus the signal's number."""
        self._kill_group(pid)
        self.workers.discard(pid)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except (ChildProcessError, ValueError):
            return 0

    def _fork(self, descriptor: int, answer: Answer | None) -> int:
        """The new worker's process id, or 0 where the system gives none."""
        above = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(descriptor)
            return 0
        if pid:
            os.close(descriptor)
            self.workers.add(pid)
            return pid
        # Whatever happens, this process must not go on as its parent does.
        try:
            if sys.platform == "linux":
                import ctypes

                ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            self.control.close()
            if answer is not None:
                _answer_guarded(descriptor, above, self.patience, answer)
            else:
                _answer_own(descriptor, above, self.wanted)
        except (Closed, TimeoutError, KeyboardInterrupt):
            os._exit(0)
        finally:
            os._exit(1)


def _loaded(wanted: dict[str, Any]) -> Answer:
    place, _, name = wanted["judge"].rpartition(":")
    if place.endswith(".py"):
        from rlvr_cli.core.own_code import from_code, read_own_file

        make = from_code(read_own_file(Path(place), "judge"), name)
    else:
        make = getattr(importlib.import_module(place), name)
    answer: Answer = make(wanted["settings"])
    return answer


def _limit(what: int, memory_mib: int) -> None:
    limit = memory_mib * 2**20
    if sys.platform == "linux":
        hard = resource.getrlimit(what)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (limit, limit))


def _answer_guarded(descriptor: int, above: int, patience: float, answer: Answer) -> None:
    while _something_comes(descriptor, above):
        job = receive(descriptor, patience)
        # The pool kills a late worker. Should the pool be dead or stopped by then, the alarm does.
        signal.alarm(math.ceil(patience) + 2)
        try:
            said = answer(job)
        except MemoryError:
            os._exit(1)
        signal.alarm(0)
        send(descriptor, ["ok", said])


def _answer_own(descriptor: int, above: int, wanted: dict[str, Any]) -> None:
    """Load and serve code of the user's, which may print, fork, leave and fill the memory."""
    # The pool ends the whole group, so that nothing that the code starts outlives it.
    os.setsid()
    # Data alone: libraries reserve address space that they never use.
    _limit(resource.RLIMIT_DATA, wanted["memory_mib"])
    own = os.getpid()

    def forked() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.close(descriptor)

    os.register_at_fork(after_in_child=forked)
    answer, said = _tried(_loaded, wanted)
    send(descriptor, said if answer is None else ["ok", None])
    while answer is not None and _something_comes(descriptor, above):
        _, said = _tried(answer, receive(descriptor, wanted["patience"]))
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # A fork of the user's that came back here answers for nobody.
        if os.getpid() != own:
            os._exit(0)
        try:
            send(descriptor, said)
        except (TypeError, ValueError, RecursionError) as error:
            send(descriptor, ["error", f"the answer is no JSON value: {error}"])


def _tried(call: Callable[[Any], Any], given: Any) -> tuple[Any, list[Any]]:
    """What a call gives, and the message that says so."""
    try:
        found = call(given)
        return found, ["ok", None if callable(found) else found]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, ["error", str(error) if type(error).__module__.startswith("rlvr_cli.") else repr(error)]


def _something_comes(descriptor: int, parent: int) -> bool:
    while os.getppid() == parent:
        if readable(descriptor, _LOOK):
            return True
    return False


def main() -> None:
    """Hear what is wanted, and serve it."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # Where standard error is closed, printing goes nowhere.
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # Where it is ignored, the number of a dead worker is free before anyone reaps it.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # A cluster sends SIGTERM to every process of a job. The training saves on it, and wants its answers until then.
    # Not ignored, which programs that the user's code starts would inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ForkServer(control, receive(control.fileno(), _PATIENCE)).serve()


if __name__ == "__main__":
    try:
        main()
    except (Closed, TimeoutError, KeyboardInterrupt):
        sys.exit(0)
