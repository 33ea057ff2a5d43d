"""Ctrl-C and SIGTERM: the first asks for a save at the next step boundary, a second Ctrl-C stops at once."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import Any


class StopRequest:
    """Context manager that turns SIGINT and SIGTERM into :attr:`signal`.

    Args:
        announce: whether to say so on standard error; one of several processes is enough.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, *, announce: bool = True) -> None:
        self.announce = announce
        self.signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells report it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> StopRequest:
        for number in self.SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is None:
            self.signal = signal.Signals(number)
            if not self.announce:
                return
            announce(f"{self.signal.name}: saving after this step (Ctrl-C: stop at once)")


def announce(text: str) -> None:
    """One line on standard error, from within a signal's handler.

    Not print: the signal may have come in the middle of one, and a stream cannot be entered twice. Whoever read
    standard error may have got the same Ctrl-C and be gone (`rlvr train 2>&1 | tee log`).
    """
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode())
