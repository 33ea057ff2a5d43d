"""Lines of arms over a budget: mean and band of the runs' curves; panels and axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlvr_cli.stats.curves import Curve, mean_band
from rlvr_cli.store.metrics import Metric

# Maximum over median beyond which a linear scale would show only the peak.
_FAR = 50.0
Points = tuple[np.ndarray, np.ndarray]
Band = tuple[np.ndarray, np.ndarray]
# Curves of more points are drawn as a running mean, with the raw curve in a light colour.
MOST_RAW = 150
WINDOWS = 40
MOST_SINGLES = 5


@dataclass(frozen=True)
class Line:
    """An arm in a panel; every array is [points] and finite, except ``low`` and ``high``.

    Attributes:
        arm: index among the arms of the figure, for colour, dashes and marker.
        x, mean: the line; empty if the runs have no x in common.
        low, high: the band, NaN where undefined; None without a band.
        raw: the curve below a running mean, drawn in a light colour.
        singles: curves of single runs, drawn thin. few: whether the band is too wide to draw.
    """

    arm: int
    name: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    raw: Points | None = None
    singles: tuple[Points, ...] = ()
    few: bool = False

    @property
    def curves(self) -> list[Points]:
        """All curves to draw."""
        return [(self.x, self.mean), *([self.raw] if self.raw is not None else []), *self.singles]


@dataclass(frozen=True)
class Panel:
    """Lines over one x axis."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class YAxis:
    """``share``: values in 0 to 1, as percent. ``floor``: values are at least 0. ``log_scale``: allowed if needed."""

    label: str
    share: bool = False
    floor: bool = True
    log_scale: bool = False

    @property
    def lowest(self) -> float:
        return 0.0 if self.share or self.floor else -np.inf

    @property
    def highest(self) -> float:
        return 1.0 if self.share else np.inf


def metric_axis(metric: Metric) -> YAxis:
    """Return the axis of a metric's figure."""
    return YAxis(metric.axis, metric.share, metric.lowest >= 0.0, metric.log_scale)


@dataclass(frozen=True)
class XAxis:
    """``divide``: divisor of shown values. ``ticks``: on an axis of powers of 2, else None."""

    label: str
    divide: float = 1.0
    ticks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Extent:
    """The range from ``low`` to ``high`` of a panel's y axis; both 0 if all values are.

    ``cut``: whether a band exceeds it. ``linear``: the scale is logarithmic above this value; None = linear.
    """

    low: float
    high: float
    cut: bool
    linear: float | None = None


def extents(panels: Sequence[Panel], axis: YAxis, *, shared: bool) -> list[Extent]:
    """Return the extent of each panel; ``shared``: a common one."""
    return [extent(panels, axis)] * len(panels) if shared else [extent([panel], axis) for panel in panels]


def extent(panels: Sequence[Panel], axis: YAxis) -> Extent:
    """Return an extent with 0, all lines, and bands up to one height of the lines beyond them.

    Wider bands are cut, since they would flatten the lines. If values of a ``log_scale`` axis exceed 50 times their
    median, the scale is linear up to the power of 10 below that median and logarithmic above.
    """
    lines = [line for panel in panels for line in panel.lines]
    heights = [y for line in lines for _, y in line.curves if len(y)]
    every = np.concatenate(heights) if heights else np.zeros(1)
    low, high = min(0.0, float(every.min())), max(0.0, float(every.max()))
    linear = _linear(every) if axis.log_scale else None
    span = high - low or 1.0
    drawn = [edge for line in lines if not line.few for edge in (line.low, line.high) if edge is not None]
    ends = [edge[np.isfinite(edge)] for edge in drawn]
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


@dataclass(frozen=True)
class ArmLine:
    """A line with the facts for its caption.

    Attributes:
        runs: number with values. window: rollouts of the running mean; 1 = none. ends: x at which the mean ends before
            the longest run, else None.
        banded: source of variance of the band: `runs`, `problems` (of a single run), `both` or `none`.
    """

    line: Line
    runs: int
    window: int
    ends: float | None
    banded: str


def arm_line(
    arm: int,
    name: str,
    curves: Sequence[Points],
    axis: YAxis,
    *,
    alone: bool,
    interval: Band | None = None,
    over_problems: Callable[[np.ndarray], Band | None] | None = None,
    band_from: int = 3,
) -> ArmLine | None:
    """Return the line of an arm; None without curves.

    The mean of several runs, with Student's pointwise 95% interval over runs, ends with the shortest run: a mean over
    the remaining runs would jump there.

    Args:
        curves: of its runs, each with at least one point.
        alone: whether the figure has no other arm, so that single runs are drawn.
        interval: pointwise 95% interval of a single run, NaN where undefined.
        over_problems: returns a 95% interval of the mean over runs and problems at x, if known; it replaces the one
            over runs.
        band_from: fewest runs with a band; with fewer the runs are drawn. An interval of two runs has one degree of
            freedom: 12.7 standard errors.
    """
    if not curves:
        return None
    raw = list(curves)
    window = max(1, round(max(len(x) for x, _ in raw) / WINDOWS)) if max(len(x) for x, _ in raw) > MOST_RAW else 1
    smooth = [(x, running_mean(y, window)) for x, y in raw]
    start, end = max(x[0] for x, _ in raw), min(x[-1] for x, _ in raw)
    last = max(x[-1] for x, _ in raw)
    if len(raw) == 1:
        x, y = smooth[0]
        low = high = None
        if interval is not None and window == 1 and np.isfinite(interval[0]).any():
            low, high = _cut(*interval, axis)
        line = Line(arm, name, x, y, low, high, raw=raw[0] if window > 1 else None)
        return ArmLine(line, 1, window, None, "none" if low is None else "problems")
    tails = tuple((x[x >= end], y[x >= end]) for x, y in smooth if x[-1] > end)
    few = len(smooth) < band_from
    singles = tuple(smooth) if few or (alone and len(smooth) <= MOST_SINGLES) else tails
    if start > end:
        none = np.zeros(0)
        return ArmLine(Line(arm, name, none, none, singles=tuple(smooth)), len(raw), window, None, "none")
    at = np.unique(np.concatenate([x for x, _ in smooth]))
    at = at[(at >= start) & (at <= end)]
    rough = (at, np.mean([np.interp(at, x, y) for x, y in raw], axis=0)) if window > 1 else None
    if window > 1:
        # A running mean hardly moves from one point to the next.
        at = np.unique(np.append(at[:: max(1, window // 8)], at[-1]))
    mean, low, high = mean_band([Curve(x, y) for x, y in smooth], at)
    crossed = over_problems(at) if over_problems is not None else None
    low, high = crossed or _cut(low, high, axis)
    line = Line(arm, name, at, mean, low, high, raw=rough, singles=singles, few=few)
    return ArmLine(line, len(raw), window, float(end) if last > end else None, "both" if crossed else "runs")


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean over ``window`` points around each, over fewer at the ends."""
    if window < 2:
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    indices = np.arange(len(values))
    first = np.maximum(0, indices - (window - 1) // 2)
    last = np.minimum(len(values), indices + window // 2 + 1)
    means: np.ndarray = (sums[last] - sums[first]) / (last - first)
    return means


def _cut(low: np.ndarray, high: np.ndarray, axis: YAxis) -> tuple[np.ndarray, np.ndarray]:
    """Clip a band to the values that the metric can have."""
    return np.maximum(low, axis.lowest), np.minimum(high, axis.highest)
