"""Messages between the pool and a worker: JSON with its length in front, over a pair of pipes."""

from __future__ import annotations

import json
import os
import select
import struct
import time
from typing import Any

_HEADER = struct.Struct(">I")
# No message comes near this; more means that the other side writes something else.
_MOST = 1 << 20


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


def _read(descriptor: int, size: int, until: float) -> bytes:
    data = b""
    while len(data) < size:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError
        try:
            piece = os.read(descriptor, size - len(data))
        except OSError as error:
            raise Closed from error
        if not piece:
            raise Closed
        data += piece
    return data
