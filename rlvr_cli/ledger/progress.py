"""How far a list of jobs is: a live line on a terminal, a plain one now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlvr_cli.core.text import in_words, some
from rlvr_cli.launch.stopping import say

# Without a terminal, seconds between two lines.
EVERY = 30.0
SHOWN = 2


class Bar:
    """Use as a context manager."""

    def __init__(self, what: str, number: int, console: Console) -> None:
        self.what, self.number, self.console = what, number, console
        self._begun = self._told = time.monotonic()
        self._live: Live | None = None
        self._done = 0

    def __enter__(self) -> Bar:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        else:
            say(self.console, f"{self.what}: {self.number} to do")
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
        taken = in_words(time.monotonic() - self._begun)
        say(self.console, f"{self.what}: {self._done} of {self.number} in {taken}")

    def show(self, done: int, now: Sequence[str]) -> None:
        """Say that ``done`` jobs have ended and that those of the names ``now`` are being done."""
        self._done = done
        if self._live is not None:
            self._live.update(Text(f"{self._line()}  {some(list(now), SHOWN)}", style="dim"))
        elif time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            say(self.console, self._line())

    def _line(self) -> str:
        taken = time.monotonic() - self._begun
        left = f", about {in_words(taken / self._done * (self.number - self._done))} left" if self._done else ""
        return f"{self.what}: {self._done} of {self.number}{left}"
