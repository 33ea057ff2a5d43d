"""The processes below a pool: ``python -m rlvr_cli.workers.child`` is a supervisor, which forks a worker on request.

The supervisor runs no code of the user's. It forks the worker, hands its end of a socket to the pool, and on request,
or when the pool is gone, kills the worker with everything that the worker started: as a *subreaper* (Linux) it inherits
also processes that left the worker's session. The worker reads jobs from its socket and answers ``["ok", value]`` or
``["error", text]``; what jobs print goes to standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HEADER = struct.Struct(">I")
# No message comes near this; a longer one means that something else writes to the socket.
_LONGEST = 1 << 30
_PATIENCE = 120.0
_DIE_WITH_PARENT, _BECOME_SUBREAPER = 1, 36
FORK, REAP = "fork", "reap"

Answer = Callable[[Any], Any]


class Closed(Exception):
    """The other end of a socket is gone, or writes something else than messages."""


def send(connection: socket.socket, message: Any, seconds: float | None = None) -> None:
    """Write a JSON message within ``seconds``. Raises Closed, or TimeoutError."""
    body = json.dumps(message).encode()
    connection.settimeout(seconds)
    try:
        connection.sendall(_HEADER.pack(len(body)) + body)
    except TimeoutError:
        raise
    except OSError as error:
        raise Closed from error


def receive(connection: socket.socket, seconds: float | None = None) -> Any:
    """Read a message that arrives within ``seconds``. Raises TimeoutError, or Closed."""
    until = None if seconds is None else time.monotonic() + seconds
    (length,) = _HEADER.unpack(_read(connection, _HEADER.size, until))
    if length > _LONGEST:
        raise Closed
    try:
        return json.loads(_read(connection, length, until))
    except ValueError as error:
        raise Closed from error


def _read(connection: socket.socket, size: int, until: float | None) -> bytes:
    data = bytearray()
    while len(data) < size:
        # At least a moment: whatever has arrived when the time is up is read.
        connection.settimeout(None if until is None else max(0.001, until - time.monotonic()))
        try:
            piece = connection.recv(min(size - len(data), 1 << 20))
        except TimeoutError:
            raise
        except OSError as error:
            raise Closed from error
        if not piece:
            raise Closed
        data += piece
    return bytes(data)


def _supervise(control: socket.socket) -> None:
    """Fork and reap workers until the pool is gone."""
    spec = receive(control, _PATIENCE)
    answer: Answer | None = None
    if spec["preload"]:
        _limit(resource.RLIMIT_AS, spec["memory_mib"])
        try:
            answer = _load(spec)
        except Exception as error:
            send(control, ["error", f"{type(error).__name__}: {error}"])
            return
        gc.collect()
        # Pages that no collector touches are shared with the workers.
        gc.freeze()
    send(control, ["ready"])
    worker = 0
    try:
        while True:
            if receive(control) == FORK:
                worker = _fork(control, spec, answer)
            else:
                status, worker = _end(worker), 0
                send(control, status)
    finally:
        _end(worker)


def _fork(control: socket.socket, spec: dict[str, Any], answer: Answer | None) -> int:
    """Fork a worker, and send its process id with its socket to the pool: 0, and no socket, where that fails."""
    ours, theirs = socket.socketpair()
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid:
        with ours, theirs:
            socket.send_fds(control, [struct.pack(">q", max(pid, 0))], [theirs.fileno()])
        return max(pid, 0)
    # Whatever happens, this process must not go on as the supervisor.
    try:
        _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        control.close()
        theirs.close()
        os.setsid()
        _serve(ours, spec, answer)
    except (Closed, KeyboardInterrupt):
        os._exit(0)
    finally:
        os._exit(1)


def _end(worker: int) -> int:
    """Kill a worker with everything that it started; its exit code, or minus the number of the signal that ended it."""
    if not worker:
        return 0
    with contextlib.suppress(OSError):
        os.killpg(worker, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(worker, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    # What left the worker's session is a child of the subreaper now, and so are the children of what is killed.
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while True:
        with contextlib.suppress(OSError, ValueError):
            for pid in map(int, children.read_text().split()):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                if not children.exists():
                    return status
                time.sleep(0.002)
        except ChildProcessError:
            return status


def _serve(connection: socket.socket, spec: dict[str, Any], answer: Answer | None) -> None:
    """Answer jobs until the pool closes the socket."""
    me, theirs = os.getpid(), answer is None
    if theirs:
        # Data alone: libraries reserve address space that they never use.
        _limit(resource.RLIMIT_DATA, spec["memory_mib"])

        def forked() -> None:
            """Leave a process that the code forks without the socket, and let it be terminated."""
            connection.close()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        os.register_at_fork(after_in_child=forked)
        answer, message = _attempt(_load, spec)
        send(connection, message)
    while answer is not None:
        job, processor = receive(connection)
        if processor is not None:
            # The default action of SIGPROF ends the process, also in the middle of a long computation in C.
            signal.setitimer(signal.ITIMER_PROF, processor)
        _, message = _attempt(answer, job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if os.getpid() != me:  # a fork of the user's that returned
            os._exit(0)
        if not theirs and message == ["error", "MemoryError()"]:
            os._exit(1)
        try:
            send(connection, message)
        except (TypeError, ValueError, RecursionError) as error:
            send(connection, ["error", f"the answer is no JSON value: {error}"])


def _attempt(call: Callable[[Any], Any], argument: Any) -> tuple[Any, list[Any]]:
    """Call a function: its result, and the message that says how it ended."""
    try:
        result = call(argument)
    except BaseException as error:
        return None, ["error", str(error) if type(error).__module__.startswith("rlvr_cli.") else repr(error)]
    return result, ["ok", None if callable(result) else result]


def _load(spec: dict[str, Any]) -> Answer:
    module, _, name = spec["function"].rpartition(":")
    answer: Answer = getattr(importlib.import_module(module), name)(spec["settings"])
    return answer


def _limit(kind: int, memory_mib: int) -> None:
    if sys.platform == "linux":
        limit, hard = memory_mib * 2**20, resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def main() -> None:
    """Serve the pool at the other end of standard input."""
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    # Where standard error is closed, printing goes nowhere.
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    # A cluster sends SIGTERM to every process of a job, and the training saves on it with the answers of its workers.
    # Ctrl-C is for the parent alone. Neither is ignored, which programs that the user's code starts would inherit.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_BECOME_SUBREAPER, 1)
    with contextlib.suppress(Closed, TimeoutError, KeyboardInterrupt):
        _supervise(control)


if __name__ == "__main__":
    main()
