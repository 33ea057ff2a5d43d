"""Lines of arms over a budget: mean and band over runs, panels and axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlvr_cli.stats.curves import Curve, mean_band
from rlvr_cli.store.metrics import Metric

# Ratio of maximum to median above which a `log_scale` axis becomes logarithmic.
_FAR = 50.0
Points = tuple[np.ndarray, np.ndarray]
Band = tuple[np.ndarray, np.ndarray]
# Longer curves are drawn as a running mean, with the raw curve in a light colour.
MOST_RAW = 150
WINDOWS = 40
MOST_SINGLES = 5


@dataclass(frozen=True)
class Line:
    """An arm in a panel; arrays are [points], finite except ``low`` and ``high``.

    Attributes:
        arm: index in the figure, for colour, dashes and marker.
        x, mean: the line; empty if the runs have no x in common.
        low, high: the band, NaN where undefined; None without a band.
        raw: the curve before smoothing.
        singles: curves of single runs, drawn thin. hide_band: keep the band out of the chart.
    """

    arm: int
    name: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    raw: Points | None = None
    singles: tuple[Points, ...] = ()
    hide_band: bool = False

    @property
    def curves(self) -> list[Points]:
        return [(self.x, self.mean), *([self.raw] if self.raw is not None else []), *self.singles]


@dataclass(frozen=True)
class Panel:
    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class YAxis:
    """``share``: values in [0, 1], in percent. ``floor``: values are at least 0. ``log_scale``: allowed."""

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
    return YAxis(metric.axis, metric.share, metric.lowest >= 0.0, metric.log_scale)


@dataclass(frozen=True)
class XAxis:
    """``divide``: divisor of the tick values. ``ticks``: of a logarithmic axis of base 2, else None."""

    label: str
    divide: float = 1.0
    ticks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Extent:
    """The range of a panel's y axis; ``low`` and ``high`` are 0 if all values are.

    ``cut``: whether a band exceeds it. ``linear``: threshold of a symmetric log scale; None = linear.
    """

    low: float
    high: float
    cut: bool
    linear: float | None = None


def compute_extents(panels: Sequence[Panel], axis: YAxis, *, shared: bool) -> list[Extent]:
    return (
        [compute_extent(panels, axis)] * len(panels) if shared else [compute_extent([panel], axis) for panel in panels]
    )


def compute_extent(panels: Sequence[Panel], axis: YAxis) -> Extent:
    """Return an extent that includes 0, all lines, and bands up to the lines' range beyond them.

    Wider bands are clipped: they would flatten the lines. If a ``log_scale`` axis has values above 50 times the median,
    the scale is linear up to the power of 10 below the median and logarithmic above.
    """
    lines = [line for panel in panels for line in panel.lines]
    heights = [y for line in lines for _, y in line.curves if len(y)]
    values = np.concatenate(heights) if heights else np.zeros(1)
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    linear = _linear_threshold(values) if axis.log_scale else None
    span = high - low or 1.0
    drawn = [edge for line in lines if not line.hide_band for edge in (line.low, line.high) if edge is not None]
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


def _linear_threshold(values: np.ndarray) -> float | None:
    positive = values[values > 0]
    if not len(positive) or positive.max() <= _FAR * np.median(positive):
        return None
    return float(10.0 ** np.floor(np.log10(np.median(positive))))


@dataclass(frozen=True)
class ArmLine:
    """A line with the data for its caption.

    Attributes:
        runs: number of runs with values. window: of the running mean, in rollouts; 1 = none.
        ends: x at which the mean ends before the longest run, else None.
        band_source: variance of the band: `runs`, `problems` (of a single run), `both` or `none`.
    """

    line: Line
    runs: int
    window: int
    ends: float | None
    band_source: str


def make_arm_line(
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

    The mean over runs, with Student's pointwise 95% interval, ends with the shortest run: it would jump there.

    Args:
        curves: of the runs, each with at least one point.
        alone: whether the figure has no other arm; then single runs are drawn.
        interval: pointwise 95% interval of a single run, NaN where undefined.
        over_problems: returns the 95% interval over runs and problems at x, if known, instead of that over runs.
        band_from: fewest runs with a band; with fewer, single runs are drawn.
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
            low, high = _clip(*interval, axis)
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
        # A running mean is smooth: points an eighth of a window apart suffice.
        at = np.unique(np.append(at[:: max(1, window // 8)], at[-1]))
    mean, low, high = mean_band([Curve(x, y) for x, y in smooth], at)
    crossed = over_problems(at) if over_problems is not None else None
    low, high = crossed or _clip(low, high, axis)
    line = Line(arm, name, at, mean, low, high, raw=rough, singles=singles, hide_band=few)
    return ArmLine(line, len(raw), window, float(end) if last > end else None, "both" if crossed else "runs")


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Return the centered running mean over ``window`` points, fewer at the ends."""
    if window < 2:
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    indices = np.arange(len(values))
    first = np.maximum(0, indices - (window - 1) // 2)
    last = np.minimum(len(values), indices + window // 2 + 1)
    means: np.ndarray = (sums[last] - sums[first]) / (last - first)
    return means


def _clip(low: np.ndarray, high: np.ndarray, axis: YAxis) -> tuple[np.ndarray, np.ndarray]:
    return np.maximum(low, axis.lowest), np.minimum(high, axis.highest)
