"""Learning curves in a few numbers, on any budget: rollouts, updates, tokens or seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.stats.intervals import mean_interval
from rlvr_cli.stats.scores import Array


@dataclass(frozen=True)
class CurveSummary:
    """One run's curve up to ``budget``; the x values are in the unit of the budget.

    ``final``: the height at the budget. ``best``, ``best_at``: the greatest height and the first x that has it.
    ``area``: the mean height, the trapezoid area over the width. ``reached``: the first x at the level, or None.
    """

    final: float
    best: float
    best_at: float
    area: float
    reached: float | None
    budget: float


@dataclass(frozen=True)
class Band:
    """The mean over ``runs`` curves at each ``x`` with Student's 95% interval; ``low`` and ``high`` None for one run.

    The interval is pointwise: it is about each x by itself, not about the whole curve.
    """

    x: Array
    mean: Array
    low: Array | None
    high: Array | None
    runs: int


def cut(x: ArrayLike, y: ArrayLike, budget: float) -> tuple[Array, Array]:
    """The curve up to ``budget``, with the linearly interpolated point at it as the last.

    Raises ValueError for a curve as ``summarise_curve`` and for a budget outside it: nothing is extrapolated.
    """
    at, height = _curve(x, y)
    if not at[0] <= budget <= at[-1]:
        raise ValueError(f"the budget {budget:g} is outside the curve, which goes from {at[0]:g} to {at[-1]:g}")
    inside = at < budget
    last = np.interp(budget, at, height)
    return np.append(at[inside], budget), np.append(height[inside], last)


def summarise_curve(
    x: ArrayLike, y: ArrayLike, *, budget: float | None = None, level: float | None = None
) -> CurveSummary:
    """Final, best, area and the first x at ``level`` of one run's curve, points joined by straight lines.

    area = 1 / (x_n - x_1) * sum_i (x_{i+1} - x_i) (y_i + y_{i+1}) / 2; the height itself for one point.
    Raises ValueError for an empty curve, unequal lengths, NaN or infinity, or x that does not increase strictly, and
    for a budget outside the curve.
    """
    at, height = _curve(x, y)
    if budget is not None:
        at, height = cut(at, height, budget)
    width = float(at[-1] - at[0])
    area = float(np.trapezoid(height, at)) / width if width > 0 else float(height[-1])
    best = int(np.argmax(height))
    return CurveSummary(
        float(height[-1]), float(height[best]), float(at[best]), area, _first_at(at, height, level), float(at[-1])
    )


def band(curves: Sequence[tuple[ArrayLike, ArrayLike]], at: ArrayLike) -> Band:
    """Mean and interval over runs of curves (x, y), each interpolated linearly at the points ``at``.

    Raises ValueError without curves, for a curve as ``summarise_curve`` and for a point outside any of them.
    """
    points = np.asarray(at, dtype=np.float64)
    if not curves or points.ndim != 1 or points.size == 0:
        raise ValueError("a band needs at least one curve and one point")
    heights = np.stack([_interpolated(x, y, points) for x, y in curves])
    estimates = [mean_interval(column) for column in heights.T]
    low = np.array([np.nan if one.low is None else one.low for one in estimates])
    high = np.array([np.nan if one.high is None else one.high for one in estimates])
    alone = len(curves) < 2
    return Band(points, heights.mean(0), None if alone else low, None if alone else high, len(curves))


def _interpolated(x: ArrayLike, y: ArrayLike, points: Array) -> Array:
    at, height = _curve(x, y)
    if not (np.all(points >= at[0]) and np.all(points <= at[-1])):
        raise ValueError(f"points from {points.min():g} to {points.max():g}; a curve goes from {at[0]:g} to {at[-1]:g}")
    return np.interp(points, at, height)


def _first_at(at: Array, height: Array, level: float | None) -> float | None:
    """The first x at which the line through the points is at ``level`` or above."""
    if level is None:
        return None
    reached = np.flatnonzero(height >= level)
    if not reached.size:
        return None
    i = int(reached[0])
    if i == 0:
        return float(at[0])
    share = (level - height[i - 1]) / (height[i] - height[i - 1])
    return float(at[i - 1] + share * (at[i] - at[i - 1]))


def _curve(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    at, height = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if at.ndim != 1 or at.shape != height.shape or at.size == 0:
        raise ValueError(f"a curve is two lists of one length, not of shapes {at.shape} and {height.shape}")
    if not (np.all(np.isfinite(at)) and np.all(np.isfinite(height))):
        raise ValueError("a curve holds NaN or infinity")
    if np.any(np.diff(at) <= 0):
        raise ValueError("the x of a curve must increase from point to point")
    return at, height
