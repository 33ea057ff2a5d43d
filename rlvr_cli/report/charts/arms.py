"""From the curves of an arm's runs to its line: mean, band, and what is drawn beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlvr_cli.report.charts.panel import Line, Points, YAxis
from rlvr_cli.stats.curves import band

Interval = tuple[np.ndarray, np.ndarray]
# Curves of more points are drawn as a running mean, and lightly as they are.
MOST_RAW = 150
WINDOWS = 40
MOST_SINGLES = 5


@dataclass(frozen=True)
class ArmLine:
    """A line and what its caption must say.

    Attributes:
        runs: that have values. window: rollouts of the running mean; 1 = none. ends: where the mean ends before the
            longest run does, else None.
        banded: what its band is over: `runs`, `problems` (of a single run), `both` or `none`.
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
    intervals: Sequence[Interval | None],
    over_problems: Callable[[np.ndarray], Interval | None] | None = None,
) -> ArmLine | None:
    """The line of one arm; None without any curve.

    The mean of several runs, with Student's 95% interval over them at each point by itself, goes as far as all of them
    do: a mean of the runs that are left would jump where one ends.

    Args:
        curves: of its runs, each with at least one point.
        alone: whether the figure has no other arm, so that there is room for single runs.
        intervals: of each curve, the ends of its own 95% interval at each point, NaN where there is none.
        over_problems: the ends of a 95% interval of the mean over runs and problems at given x, where that is known; it
            takes the place of the one over runs.
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
        own = intervals[0] if window == 1 else None
        low, high = (None, None) if own is None or not np.isfinite(own[0]).any() else _cut(*own, axis)
        line = Line(arm, name, x, y, low, high, raw=raw[0] if window > 1 else None)
        return ArmLine(line, 1, window, None, "none" if low is None else "problems")
    tails = tuple((x[x >= end], y[x >= end]) for x, y in smooth if x[-1] > end)
    # Two runs have an interval of one degree of freedom: 12.7 standard errors, of a guess at the error.
    pair = len(smooth) == 2
    singles = tuple(smooth) if pair or (alone and len(smooth) <= MOST_SINGLES) else tails
    if start > end:
        none = np.zeros(0)
        return ArmLine(Line(arm, name, none, none, singles=tuple(smooth)), len(raw), window, None, "none")
    at = np.unique(np.concatenate([x for x, _ in smooth]))
    at = at[(at >= start) & (at <= end)]
    rough = (at, np.mean([np.interp(at, x, y) for x, y in raw], axis=0)) if window > 1 else None
    if window > 1:
        # A running mean hardly moves from one point to the next.
        at = np.unique(np.append(at[:: max(1, window // 8)], at[-1]))
    found = band(smooth, at)
    assert found.low is not None and found.high is not None
    crossed = over_problems(at) if over_problems is not None else None
    low, high = crossed or _cut(found.low, found.high, axis)
    line = Line(arm, name, at, found.mean, low, high, raw=rough, singles=singles, faint=pair)
    return ArmLine(line, len(raw), window, float(end) if last > end else None, "both" if crossed else "runs")


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean over ``window`` points around each, of fewer at the ends."""
    if window < 2:
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    first = np.maximum(0, places - (window - 1) // 2)
    last = np.minimum(len(values), places + window // 2 + 1)
    means: np.ndarray = (sums[last] - sums[first]) / (last - first)
    return means


def _cut(low: np.ndarray, high: np.ndarray, axis: YAxis) -> tuple[np.ndarray, np.ndarray]:
    """A band without values that cannot be."""
    return np.maximum(low, axis.lowest), np.minimum(high, axis.highest)
