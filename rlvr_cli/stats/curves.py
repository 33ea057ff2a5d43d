"""Piecewise linear learning curves over a budget (rollouts, updates, tokens or seconds)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.stats.intervals import mean_intervals
from rlvr_cli.stats.scores import Array


@dataclass(frozen=True)
class Curve:
    """A learning curve.

    Attributes:
        x: [points] of the budget, strictly increasing. y: [points], or [points, problems] with one curve per problem.
    Raises ValueError for an empty curve, unequal lengths, NaN or infinity, or x that is not strictly increasing.
    """

    x: Array
    y: Array

    def __post_init__(self) -> None:
        if self.x.ndim != 1 or self.y.ndim not in (1, 2) or len(self.x) != len(self.y) or not self.y.size:
            raise ValueError(f"x and y must have equal, non-zero lengths; got shapes {self.x.shape} and {self.y.shape}")
        if not (np.all(np.isfinite(self.x)) and np.all(np.isfinite(self.y))):
            raise ValueError("a curve must not contain NaN or infinity")
        if np.any(np.diff(self.x) <= 0):
            raise ValueError("x must be strictly increasing")

    def at(self, x: ArrayLike) -> Array:
        """Interpolate y at one or several x: the shape of ``x`` plus the problem axis. Raises ValueError outside."""
        points = np.asarray(x, dtype=np.float64)
        if not (np.all(points >= self.x[0]) and np.all(points <= self.x[-1])):
            outside = points[~((points >= self.x[0]) & (points <= self.x[-1]))].flat[0]
            raise ValueError(f"{outside:g} is outside the curve, from {self.x[0]:g} to {self.x[-1]:g}")
        if self.y.ndim == 1:
            return np.asarray(np.interp(points, self.x, self.y))
        return np.stack([np.interp(points, self.x, column) for column in self.y.T], axis=-1)

    def between(self, start: float, end: float) -> Curve:
        """Return the curve restricted to [``start``, ``end``], with interpolated ends."""
        inside = self.x[(self.x > start) & (self.x < end)]
        x = np.unique(np.concatenate([[start], inside, [end]]))
        return Curve(x, self.at(x))

    def area(self) -> Array:
        """Return the normalised area: 1 / (x_n - x_1) * sum_i (x_{i+1} - x_i) (y_i + y_{i+1}) / 2; y of one point."""
        width = float(self.x[-1] - self.x[0])
        return np.asarray(np.trapezoid(self.y, self.x, axis=0)) / width if width > 0 else self.y[-1]

    def first_reaching(self, level: float) -> float | None:
        """Return the first x at which the mean over problems is at least ``level``; None if never."""
        height = self.y if self.y.ndim == 1 else self.y.mean(axis=1)
        reached = np.flatnonzero(height >= level)
        if not reached.size:
            return None
        i = int(reached[0])
        if i == 0:
            return float(self.x[0])
        share = (level - height[i - 1]) / (height[i] - height[i - 1])
        return float(self.x[i - 1] + share * (self.x[i] - self.x[i - 1]))


def mean_band(curves: Sequence[Curve], at: ArrayLike) -> tuple[Array, Array, Array]:
    """Return the mean over runs at the points ``at`` with Student's pointwise 95% interval, NaN if undefined.

    Raises ValueError without curves, and for a point outside any of them.
    """
    points = np.asarray(at, dtype=np.float64)
    if not curves or points.ndim != 1 or points.size == 0:
        raise ValueError("a band requires at least one curve and one point")
    heights = np.stack([curve.at(points) for curve in curves])
    return heights.mean(0), *mean_intervals(heights)
