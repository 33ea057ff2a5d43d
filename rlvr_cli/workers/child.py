"""A worker process of a pool: ``python -m rlvr_cli.workers.child``, with a socket of the pool as standard input.

The process forks the worker, which answers jobs on the socket with ``["ok", value]`` or ``["error", text]``, and waits
until the worker ends or the pool closes the socket. Then it kills the worker's descendants and exits with its status.
As a *subreaper* (Linux) it inherits processes that left the worker's session. Output of jobs goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlvr_cli.core.processes import end_with_parent, inherit_orphans

# Far above any message; a longer one is not from a worker.
_MAX_MESSAGE_BYTES = 1 << 30
_BLOCKED_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# Errors of a socket whose peer has exited, or sends invalid messages.
CONNECTION_LOST = (EOFError, OSError, ValueError)


def send(connection: Connection, message: Any) -> None:
    """Write a JSON message. Raises one of CONNECTION_LOST."""
    connection.send_bytes(json.dumps(message).encode())


def receive(connection: Connection) -> Any:
    """Read a message. Raises one of CONNECTION_LOST."""
    return json.loads(connection.recv_bytes(_MAX_MESSAGE_BYTES))


def _wait_for_worker(worker: int, connection: Connection) -> int:
    """Wait for the worker; return its exit code, or the negative number of the signal that killed it."""

    def kill_when_closed() -> None:
        poll = select.poll()
        poll.register(connection.fileno(), 0)  # POLLHUP needs no subscription
        poll.poll()
        with contextlib.suppress(OSError):
            os.kill(worker, signal.SIGKILL)

    threading.Thread(target=kill_when_closed, daemon=True).start()
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    with contextlib.suppress(OSError):
        os.killpg(worker, signal.SIGKILL)
    # The subreaper has inherited processes that left the worker's session, and children of killed ones.
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


def _serve_jobs(connection: Connection) -> None:
    worker = os.getpid()
    masks = threading.local()

    def block_signals() -> None:
        """Block signals during a fork: the new process would ignore them until it has default handlers."""
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)

    def unblock_signals() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def reset_fork() -> None:
        """Close the socket in a process forked by user code, and restore the default signal handlers."""
        connection.close()
        for number in _BLOCKED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        unblock_signals()

    os.register_at_fork(before=block_signals, after_in_parent=unblock_signals, after_in_child=reset_fork)
    spec = receive(connection)
    send(connection, worker)
    if sys.platform == "linux":
        # For user code only data, since its libraries reserve unused address space.
        kind, limit = resource.RLIMIT_AS if spec["trusted"] else resource.RLIMIT_DATA, spec["memory_mib"] * 2**20
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    handler, message = _attempt(lambda settings: pkgutil.resolve_name(spec["function"])(settings), spec["settings"])
    send(connection, message)
    while handler is not None:
        job, processor = receive(connection)
        if processor is not None:
            # The default action of SIGPROF ends the process even in C code.
            signal.setitimer(signal.ITIMER_PROF, processor)
        _, message = _attempt(handler, job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if os.getpid() != worker:  # returned from a fork by user code
            os._exit(0)
        if spec["trusted"] and message == ["error", "MemoryError()"]:
            os._exit(1)
        try:
            text = json.dumps(message)
        except (TypeError, ValueError, RecursionError) as error:
            text = json.dumps(["error", f"the answer is not a JSON value: {error}"])
        connection.send_bytes(text.encode())


def _attempt(call: Callable[[Any], Any], argument: Any) -> tuple[Any, list[Any]]:
    try:
        result = call(argument)
    except BaseException as error:
        return None, ["error", str(error) if type(error).__module__.startswith("rlvr_cli.") else repr(error)]
    return result, ["ok", None if callable(result) else result]


def main() -> None:
    connection = Connection(os.dup(0))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    # If standard error is closed, output is discarded.
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    # A cluster sends SIGTERM to every process of a job, but the training needs its workers to save. Only the parent
    # handles Ctrl-C. SIG_IGN would be inherited by programs that user code starts.
    for number in _BLOCKED_SIGNALS:
        signal.signal(number, lambda *_: None)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    inherit_orphans()
    parent = os.getpid()
    worker = os.fork()
    if not worker:
        # The worker must not continue as the waiting process.
        try:
            end_with_parent(parent)
            os.setsid()
            _serve_jobs(connection)
        except (*CONNECTION_LOST, KeyboardInterrupt):
            os._exit(0)
        finally:
            os._exit(1)
    status = _wait_for_worker(worker, connection)
    if status < 0:
        with contextlib.suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
