"""What a chart of lines shows, before it is drawn: lines with bands, panels of them, axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Times the median: above, a linear scale would show one peak and nothing else.
_FAR = 50.0
Points = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Line:
    """One arm in one panel; every array is [points] and finite, but for ``low`` and ``high``.

    Attributes:
        arm: its place among the arms of the figure, which decides colour, dashes and marker.
        x, mean: the line; without points where no x is common to the runs.
        low, high: the band, NaN where there is none; None without one.
        raw: what a running mean was taken of, drawn lightly.
        singles: curves of single runs, drawn thin. faint: whether the band is, for it tells little.
    """

    arm: int
    name: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    raw: Points | None = None
    singles: tuple[Points, ...] = ()
    faint: bool = False

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


@dataclass(frozen=True)
class Extent:
    """The heights from ``low`` to ``high`` of a panel.

    Both are 0 where nothing else is shown. ``cut``: whether a band goes on beyond. ``linear``: the scale is logarithmic
    above this height; None = linear.
    """

    low: float
    high: float
    cut: bool
    linear: float | None = None


def extents(panels: Sequence[Panel], axis: YAxis, *, shared: bool) -> list[Extent]:
    """That of each panel; ``shared``: one for all."""
    return [extent(panels, axis)] * len(panels) if shared else [extent([panel], axis) for panel in panels]


def extent(panels: Sequence[Panel], axis: YAxis) -> Extent:
    """Holds 0, every line whole, and of bands what lies within one such height of the lines.

    Two runs may have an interval so long that nothing else could be seen. Where values of a ``wide`` axis grow to more
    than 50 times their median, the scale is linear up to the power of 10 below that median and logarithmic above.
    """
    lines = [line for panel in panels for line in panel.lines]
    heights = [y for line in lines for _, y in line.curves if len(y)]
    heights += [part for panel in panels if panel.context for part in panel.context[1:] if len(part)]
    every = np.concatenate(heights) if heights else np.zeros(1)
    low, high = min(0.0, float(every.min())), max(0.0, float(every.max()))
    linear = _linear(every) if axis.wide else None
    span = high - low or 1.0
    ends = [part[np.isfinite(part)] for line in lines for part in (line.low, line.high) if part is not None]
    bands = np.concatenate([*ends, np.array([low, high])])
    bottom, top = float(bands.min()), float(bands.max())
    cut = bottom < low - span or top > high + span
    low, high = max(bottom, low - span), min(top, high + span)
    if low == high:
        return Extent(0.0, 0.0, cut=False)
    if linear is not None:
        return Extent(0.0, 1.5 * high, cut, linear)
    margin = 0.05 * (high - low or 1.0)
    return Extent(low - margin if low < 0 else 0.0, min(high + margin, 1.02 if axis.share else np.inf), cut)


def _linear(values: np.ndarray) -> float | None:
    positive = values[values > 0]
    if not len(positive) or positive.max() <= _FAR * np.median(positive):
        return None
    return float(10.0 ** np.floor(np.log10(np.median(positive))))
