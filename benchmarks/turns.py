"""Two sides of a comparison taking turns, and how their ratio is told: the median, the lowest and the highest."""

from __future__ import annotations

import os
import resource
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Compared:
    """What two sides took, a pair a repeat."""

    theirs: list[float]
    ours: list[float]

    @property
    def ratios(self) -> list[float]:
        return [ours / theirs for theirs, ours in zip(self.theirs, self.ours, strict=True)]

    @property
    def ratio(self) -> str:
        """Ours over theirs."""
        ratios = self.ratios
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"

    def cells(self) -> list[str]:
        """Median of theirs, of ours, and the ratio."""
        return [f"{statistics.median(self.theirs):.3f}", f"{statistics.median(self.ours):.3f}", self.ratio]


def processor_seconds() -> float:
    """Of this process and of the children that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def compared(theirs: Callable[[], float], ours: Callable[[], float], repeats: int) -> Compared:
    """Pairs of turns, who is first by turns too; a caller whose first turn is slower makes one before."""
    pairs = []
    for number in range(repeats):
        if number % 2:
            second = ours()
            pairs.append((theirs(), second))
        else:
            pairs.append((theirs(), ours()))
    return Compared([pair[0] for pair in pairs], [pair[1] for pair in pairs])


def heading(*titles: str) -> str:
    """The head of a Markdown table whose first column is text and whose others are numbers."""
    return f"| {' | '.join(titles)} |\n|---|{'---:|' * (len(titles) - 1)}"


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def load_said() -> str:
    """What else the machine was doing."""
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start"
