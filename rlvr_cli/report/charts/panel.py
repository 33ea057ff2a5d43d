"""What a chart of lines shows, before it is drawn: lines with bands, panels of them, axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Points = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Line:
    """One arm in one panel; every array is [points] and finite, but for ``low`` and ``high``.

    Attributes:
        arm: its place among the arms of the figure, which decides colour, dashes and marker.
        x, mean: the line; without points where no x is common to the runs.
        low, high: the band, NaN where there is none; None without one.
        raw: what a running mean was taken of, drawn lightly.
        singles: curves of single runs, drawn thin.
    """

    arm: int
    name: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    raw: Points | None = None
    singles: tuple[Points, ...] = ()

    @property
    def curves(self) -> list[Points]:
        """All that is drawn as a line."""
        return [(self.x, self.mean), *([self.raw] if self.raw is not None else []), *self.singles]


@dataclass(frozen=True)
class Panel:
    """Lines over one x axis; ``context``: (x, low, high) of a grey area behind them."""

    title: str
    lines: tuple[Line, ...]
    context: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True)
class YAxis:
    """``share``: values in 0 to 1, as percent. ``floor``: no value can be below 0. ``wide``: it may grow by orders."""

    label: str
    share: bool = False
    floor: bool = True
    wide: bool = False

    @property
    def lowest(self) -> float:
        return 0.0 if self.share or self.floor else -np.inf

    @property
    def highest(self) -> float:
        return 1.0 if self.share else np.inf


@dataclass(frozen=True)
class XAxis:
    """``divide``: of a value, before it is shown. ``ticks``: on an axis of powers of 2, else None."""

    label: str
    divide: float = 1.0
    ticks: tuple[int, ...] | None = None


def extent(panels: Sequence[Panel], axis: YAxis) -> tuple[float, float, bool]:
    """The heights from where to where a chart goes, and whether it cuts a band.

    It holds 0, every line whole, and of bands what lies within one such height of the lines: two runs may have an
    interval so long that nothing else could be seen.
    """
    lines = [line for panel in panels for line in panel.lines]
    heights = [y for line in lines for _, y in line.curves if len(y)]
    heights += [part for panel in panels if panel.context for part in panel.context[1:] if len(part)]
    low, high = (min(0.0, *(float(y.min()) for y in heights)), max(0.0, *(float(y.max()) for y in heights)))
    span = high - low or 1.0
    ends = [part[np.isfinite(part)] for line in lines for part in (line.low, line.high) if part is not None]
    ends = [part for part in ends if len(part)]
    bottom = min([low, *(float(part.min()) for part in ends)])
    top = max([high, *(float(part.max()) for part in ends)])
    cut = bottom < low - span or top > high + span
    low, high = max(bottom, low - span), min(top, high + span)
    margin = 0.05 * (high - low or 1.0)
    return (low - margin if low < 0 else 0.0), min(high + margin, 1.02 if axis.share else np.inf), cut
