"""95% intervals of means over problems, clustered by problem.

Samples of a problem share its difficulty and are not independent, so each problem enters with one value (its pass@k,
its mean reward, ...): the cluster-robust standard error of Miller 2024, "Adding Error Bars to Evals".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

LEVEL = 0.95
# The smallest and largest possible mean.
Bounds = tuple[float, float]
UNBOUNDED: Bounds = (-math.inf, math.inf)
# A spread below this fraction of the values is rounding error.
_NO_SPREAD = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A mean over ``n`` problems with its 95% interval; ``low`` and ``high`` are None without an estimate of the
    variance."""

    value: float
    low: float | None
    high: float | None
    n: int

    def as_json(self) -> dict[str, float | int | None]:
        return {"value": self.value, "low": self.low, "high": self.high, "problems": self.n}


def mean_interval(values: Sequence[float] | np.ndarray, bounds: Bounds = UNBOUNDED) -> Estimate:
    """Return the mean over problems or seeds with Student's t interval (n - 1 degrees of freedom) within ``bounds``.

    The ends are None for a single value or identical values. Raises ValueError without values.
    """
    data = _validate(values)
    mean, n = float(data.mean()), len(data)
    if n < 2 or float(np.ptp(data)) <= _NO_SPREAD * float(np.abs(data).max()):
        return Estimate(mean, None, None, n)
    half = student_quantile(n - 1) * float(data.std(ddof=1)) / math.sqrt(n)
    return Estimate(mean, max(bounds[0], mean - half), min(bounds[1], mean + half), n)


def mean_intervals(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of :func:`mean_interval` of every column of a table [runs, points]; NaN if undefined."""
    columns = np.ascontiguousarray(table.T)
    n, means = len(table), columns.mean(-1)
    if n < 2:
        return np.full_like(means, np.nan), np.full_like(means, np.nan)
    half = student_quantile(n - 1) * columns.std(-1, ddof=1) / math.sqrt(n)
    half[np.ptp(columns, -1) <= _NO_SPREAD * np.abs(columns).max(-1)] = np.nan
    return means - half, means + half


def difference_bounds(bounds: Bounds) -> Bounds:
    """Return the smallest and largest difference of two means within ``bounds``."""
    return bounds[0] - bounds[1], bounds[1] - bounds[0]


def share_interval(values: Sequence[float] | np.ndarray) -> Estimate:
    """Return the mean of values in [0, 1], one per problem, with Wilson's interval for the effective sample size.

    The t interval exceeds [0, 1] and has width 0 for identical values; Wilson's score interval (1927) does neither.
    n_eff = m (1 - m) / SE^2 with the mean m and the cluster-robust SE (Korn and Graubard 1998; Dean and Pagano 2015);
    on 0/1 values it is n - 1. Raises ValueError without values or for one outside [0, 1].
    """
    data = _validate(values)
    if data.min() < 0.0 or data.max() > 1.0:
        raise ValueError("shares must be between 0 and 1")
    n = len(data)
    if n < 2:
        return Estimate(float(data.mean()), None, None, n)
    return share_interval_of_error(float(data.mean()), math.sqrt(float(data.var(ddof=1)) / n), n)


def share_interval_of_error(mean: float, error: float, n: int) -> Estimate:
    """Return ``share_interval`` of a mean with a known standard ``error`` over ``n`` problems, two or more."""
    bernoulli, variance = mean * (1.0 - mean), error**2
    # Identical values have variance 0: treat the problems as n Bernoulli draws.
    effective = bernoulli / variance if variance > 1e-12 else float(n)
    z2 = student_quantile(n - 1) ** 2
    centre = (mean + z2 / (2 * effective)) / (1 + z2 / effective)
    half = math.sqrt(z2 * (bernoulli / effective + z2 / (4 * effective**2))) / (1 + z2 / effective)
    return Estimate(mean, max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half)), n)


def paired_interval(
    before: Sequence[float] | np.ndarray, after: Sequence[float] | np.ndarray, bounds: Bounds = UNBOUNDED
) -> Estimate:
    """Return the mean of after - before over the same problems, in the same order, with its paired t interval.

    Pairing removes the shared difficulty (Miller 2024). ``bounds``: of each mean. Raises ValueError for unequal
    lengths.
    """
    first, second = _validate(before), _validate(after)
    if len(first) != len(second):
        raise ValueError(f"paired values must have equal lengths; got {len(first)} and {len(second)}")
    return mean_interval(second - first, difference_bounds(bounds))


@lru_cache(maxsize=1024)
def student_quantile(degrees: float, level: float = LEVEL) -> float:
    """Return q with P(|t| <= q) = ``level``, of Student's t. Raises ValueError below one degree of freedom."""
    if not degrees >= 1:
        raise ValueError(f"degrees of freedom must be at least 1; got {degrees}")
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + level) / 2))


def _validate(values: Sequence[float] | np.ndarray) -> np.ndarray:
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0:
        raise ValueError("values must be one-dimensional with at least one problem")
    return data
