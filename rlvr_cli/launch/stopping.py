"""Handle Ctrl-C, SIGTERM, SIGHUP: the first requests a save at the next step, a second Ctrl-C stops at once."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlvr_cli.core.terminal import Cell, colourize, style_of, wrap_text
from rlvr_cli.core.text import escape_for_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from rlvr_cli.runs.folder import RunDir

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """A context manager that stores the first of :data:`SIGNALS` in :attr:`signal`.

    Args:
        announce: whether to announce it on standard error; of several processes only the launching one does.
    """

    def __init__(self, *, announce: bool = True) -> None:
        self.announce = announce
        self.signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as in shells: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> StopRequest:
        self._previous = listen(self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGHUP:
            leave_terminal()
        if self.signal is None:
            self.signal = signal.Signals(number)
            if not self.announce:
                return
            announce(f"{self.signal.name}: saving after this step (Ctrl-C: stop at once)")


def listen(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Install `handler` for each of :data:`SIGNALS`, except SIGHUP under nohup; return the earlier handlers."""
    numbers = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in numbers}


def leave_terminal() -> None:
    """Redirect output from the closed terminal to /dev/null, as every further write would fail."""
    for descriptor in (1, 2):
        # A closed terminal is no terminal any more, but still a character device, like /dev/null.
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def say(console: Console, text: Cell) -> None:
    """Print one plain line, ignoring write errors."""
    with writing(console):
        _print(console, text)


@contextlib.contextmanager
def writing(console: Console) -> Iterator[None]:
    """Silence ``console`` when a write inside fails (closed pipe, closed terminal, full disk) instead of ending the
    training; log.txt has the lines too.

    A process without SIGHUP (a shell's `disown`, another session) detects the closed terminal here, and continues.
    """
    try:
        yield
    except SystemExit:
        # Rich would exit on a closed pipe.
        console.quiet = True
    except OSError as error:
        console.quiet = True
        if error.errno == errno.EIO:
            leave_terminal()
        else:
            announce(f"standard output can't be written ({error.strerror}); the run continues, log.txt has its lines")
        _discard_output(console)


@contextlib.contextmanager
def showing(bar: Progress) -> Iterator[None]:
    """Show a progress bar; the work inside continues when the terminal is closed."""
    with writing(bar.console):
        bar.start()
    try:
        yield
    finally:
        with writing(bar.console):
            bar.stop()


def _discard_output(console: Console) -> None:
    """Discard the buffer of the console's stream, which Python would fail to flush at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        descriptor = console.file.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
        console.file.flush()


def _print(console: Console, text: Cell) -> None:
    from rich.text import Text

    safe, style = escape_for_terminal(str(text)), style_of(text)
    text_fitted = wrap_text(safe, console.width) if console.is_terminal else safe
    line = Text.from_ansi(colourize(text_fitted, style)) if style else text_fitted
    console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)


def announce(text: str) -> None:
    """Print one line on standard error from a signal handler.

    Not with print: the signal may have interrupted one, and streams are not reentrant. The reader of standard error may
    have ended at the same Ctrl-C (`rlvr train 2>&1 | tee log`).
    """
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode())


@dataclass(frozen=True)
class RunEnd:
    """The end of a run: ``finished`` (exit code 0) or ``interrupted`` (128 + the signal)."""

    run: RunDir
    status: str
    exit_code: int
