"""Messages between the pool and its processes: JSON with its length in front, and commands to fork and to reap."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from typing import Any

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
