"""Handle Ctrl-C, SIGTERM and SIGHUP: the first requests a save after this step, a second Ctrl-C stops at once."""

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
    """A context manager that stores the first of :data:`SIGNALS` in :attr:`signal`; ``announce``: report it."""

    def __init__(self, *, announce: bool = True) -> None:
        self.announce = announce
        self.signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as in shells: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> StopRequest:
        self._previous = install_handlers(self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGHUP:
            detach_terminal()
        if self.signal is None:
            self.signal = signal.Signals(number)
            if self.announce:
                announce(f"{self.signal.name}: saving after this step (Ctrl-C: stop at once)")


def install_handlers(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Install `handler` for each of :data:`SIGNALS`, except SIGHUP under nohup; return the earlier handlers."""
    numbers = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in numbers}


def detach_terminal() -> None:
    """Redirect output from the closed terminal to /dev/null, since further writes would fail."""
    for descriptor in (1, 2):
        # A closed terminal fails isatty, but remains a character device, like /dev/null.
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def print_line(console: Console, text: Cell) -> None:
    """Print a plain line, ignoring write errors."""
    from rich.text import Text

    safe, style = escape_for_terminal(str(text)), style_of(text)
    fitted = wrap_text(safe, console.width) if console.is_terminal else safe
    line = Text.from_ansi(colourize(fitted, style)) if style else fitted
    with tolerate_write_errors(console):
        console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)


@contextlib.contextmanager
def tolerate_write_errors(console: Console) -> Iterator[None]:
    """Silence ``console`` after a failed write (closed pipe or terminal, full disk); log.txt has the lines too.

    A process without SIGHUP (a shell's `disown`, another session) detects the closed terminal here, by EIO.
    """
    try:
        yield
    except SystemExit:
        # Rich would exit on a closed pipe.
        console.quiet = True
    except OSError as error:
        console.quiet = True
        if error.errno == errno.EIO:
            detach_terminal()
        else:
            announce(f"standard output cannot be written ({error.strerror}); the run continues and writes to log.txt")
        _discard_output(console)


@contextlib.contextmanager
def show_progress_bar(bar: Progress) -> Iterator[None]:
    """Show a progress bar; the block continues when the terminal is closed."""
    with tolerate_write_errors(bar.console):
        bar.start()
    try:
        yield
    finally:
        with tolerate_write_errors(bar.console):
            bar.stop()


def _discard_output(console: Console) -> None:
    """Discard the buffer of the console's stream, whose flush at exit would fail."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        descriptor = console.file.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
        console.file.flush()


def announce(text: str) -> None:
    """Print a line on standard error from a signal handler, without streams, which are not reentrant.

    The reader of standard error may have ended at the same Ctrl-C (`rlvr train 2>&1 | tee log`).
    """
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode())


@dataclass(frozen=True)
class RunEnd:
    """The end of a run: ``finished`` (exit code 0) or ``interrupted`` (128 + the signal)."""

    run: RunDir
    status: str
    exit_code: int
