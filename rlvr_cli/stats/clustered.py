"""95% intervals of means and differences over seeds x problems, with seeds and problems as random clusters.

Model: y[s, p] = mu + run[s] + problem[p] + rest[s, p], all of mean zero and independent, one value a cell. Then

    Var(mean) = run variance / S + problem variance / P + rest variance / (S P)

which Miller's one-way standard error over problems misses by its first term, however many problems there are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.stats.intervals import LEVEL
from rlvr_cli.stats.scores import Array, paired, same_problems, score_matrix

_BISECTIONS = 60
_LEAST_P = 1e-100
_TIE = 1e-12
_NO_SPREAD = 1e-12


@dataclass(frozen=True)
class MeanVariance:
    """Split the estimated variance of a mean into two nearly independent parts, arrays of shape [...].

    ``runs``: MS_runs / (S P), known with S - 1 degrees of freedom: it holds the spread between runs and the rest.
    ``problems``: max(MS_problems - MS_rest, 0) / (S P), what the spread between problems adds.
    """

    runs: Array
    problems: Array
    runs_degrees: Array
    problems_degrees: Array

    @property
    def total(self) -> Array:
        """The variance of the mean."""
        return self.runs + self.problems


@dataclass(frozen=True)
class TwoWay:
    """Mean and mean squares of tables [..., S, P] (Searle, Casella and McCulloch 1992, "Variance Components"; one
    value a cell)."""

    mean: Array
    runs: Array
    problems: Array
    rest: Array
    seeds: int
    count: int

    @property
    def variance(self) -> MeanVariance:
        """The variance of the mean; needs two seeds and two problems.

        Scores are counts, so the means of few runs may agree to the last digit. That says that runs differ little, not
        that nothing is uncertain: the run part is then the one of runs that do not differ, from the rest.
        """
        cells = self.seeds * self.count
        ones = np.ones_like(self.mean)
        return MeanVariance(
            np.where(self.runs <= _TIE * self.rest, self.rest, self.runs) / cells,
            np.maximum(self.problems - self.rest, 0.0) / cells,
            ones * (self.seeds - 1),
            ones * (self.count - 1),
        )


def two_way(tables: Array) -> TwoWay:
    """The two-way analysis of variance of tables [..., S, P], S and P at least 2."""
    seeds, count = tables.shape[-2:]
    mean = tables.mean((-2, -1))
    rows = tables.mean(-1) - mean[..., None]
    columns = tables.mean(-2) - mean[..., None]
    total = ((tables - mean[..., None, None]) ** 2).sum((-2, -1))
    between_rows, between_columns = count * (rows**2).sum(-1), seeds * (columns**2).sum(-1)
    rest = np.maximum(total - between_rows - between_columns, 0.0)
    degrees = (seeds - 1, count - 1)
    return TwoWay(
        mean, between_rows / degrees[0], between_columns / degrees[1], rest / (degrees[0] * degrees[1]), seeds, count
    )


def half_width(variance: MeanVariance, alpha: float | Array = 1 - LEVEL) -> Array:
    """Return the half-width of the interval of level 1 - ``alpha``, each part with its own quantile of Student's t:

    h^2 = t(S - 1)^2 * runs + t(P - 1)^2 * problems, after Cochran and Cox 1957, "Experimental Designs", who weight
    the quantiles and not their squares. It covers 94% or more in the paired settings of docs/statistics.md.
    """
    runs = _quantile(variance.runs_degrees, alpha) ** 2 * variance.runs
    return np.sqrt(runs + _quantile(variance.problems_degrees, alpha) ** 2 * variance.problems)


def p_value(mean: Array, variance: MeanVariance) -> Array:
    """Return the two-sided p of "the mean is 0": the ``alpha`` at which the interval just reaches 0."""
    low, high = np.full_like(mean, np.log(_LEAST_P)), np.zeros_like(mean)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        reaches = half_width(variance, np.exp(middle)) >= np.abs(mean)
        low, high = np.where(reaches, middle, low), np.where(reaches, high, middle)
    return np.exp(high)


def _quantile(degrees: Array, alpha: float | Array) -> Array:
    """The value that |t| exceeds with probability ``alpha``; from the lower tail, which keeps small ones exact."""
    from scipy.special import stdtrit

    quantile: Array = -stdtrit(degrees, np.asarray(alpha) / 2)
    return quantile


@dataclass(frozen=True)
class VarianceComponents:
    """Variances of one value: between runs, between problems, and the rest (sampling, run x problem); 0 or more."""

    run: float
    problem: float
    residual: float


@dataclass(frozen=True)
class CrossedEstimate:
    """Hold a mean over ``seeds`` runs and ``problems``, its 95% interval and the two-sided p of "the mean is 0".

    p < 0.05 where the interval leaves 0 out, and only there. ``low`` and ``high`` are None where there is no spread to
    estimate from: one seed and one problem, or values that do not vary.
    """

    value: float
    low: float | None
    high: float | None
    standard_error: float | None
    p_value: float | None
    seeds: int
    problems: int
    components: VarianceComponents | None

    @property
    def spread_of_runs(self) -> bool:
        """Whether the interval contains the spread between runs: with one seed it is about these weights only."""
        return self.seeds > 1

    @property
    def spread_of_problems(self) -> bool:
        """Whether the interval contains the spread between problems."""
        return self.problems > 1

    def as_json(self) -> dict[str, Any]:
        """The estimate as JSON values."""
        return {**asdict(self), "spread_of_runs": self.spread_of_runs, "spread_of_problems": self.spread_of_problems}


def crossed_interval(values: ArrayLike) -> CrossedEstimate:
    """Estimate the mean of scores [S seeds, P problems] with seeds and problems as random clusters.

    The variance is the two-way random-effects one, the half-width Cochran's (:func:`half_width`). With one seed it is
    Student's t over problems and contains no spread between runs; with one problem, over seeds.
    Raises ValueError as ``score_matrix``.
    """
    data = score_matrix(values)
    seeds, problems = data.shape
    if min(seeds, problems) < 2:
        return _one_way(data.ravel(), float(np.abs(data).max()), seeds, problems)
    table = two_way(data)
    return estimated(table.mean, table.variance, float(np.abs(data).max()), seeds, problems, _components(table))


def paired_crossed_interval(a: ArrayLike, b: ArrayLike) -> CrossedEstimate:
    """The mean of a - b, arms [S, P] of the same seeds and problems: ``crossed_interval`` of the differences.

    Pairing removes what both arms share: the problem's difficulty, and what one seed does to both.
    Raises ValueError as ``score_matrix`` and for unequal shapes.
    """
    first, second = paired(a, b)
    return crossed_interval(first - second)


def unpaired_crossed_interval(a: ArrayLike, b: ArrayLike) -> CrossedEstimate:
    """The mean of a - b, arms [S1, P] and [S2, P] of the same problems whose seeds are not shared.

    The run parts of both arms add, with Welch's degrees of freedom; the problem part is that of the differences of
    each problem's means, less what the rest contributes. ``seeds`` is the smaller number. With one seed in an arm it
    is Student's t over problems. Raises ValueError as ``score_matrix`` and for unequal numbers of problems.
    """
    first, second = same_problems(a, b)
    seeds, problems = min(len(first), len(second)), first.shape[1]
    scale = float(max(np.abs(first).max(), np.abs(second).max()))
    if seeds < 2:
        return _one_way(first.mean(0) - second.mean(0), scale, seeds, problems)
    mean, variance = unpaired_difference(first, second)
    if problems < 2:
        return estimated(mean, variance, scale, seeds, problems)
    tables = [_components(two_way(arm)) for arm in (first, second)]
    components = VarianceComponents(
        sum(table.run for table in tables),
        float(variance.problems) * problems,
        sum(table.residual for table in tables),
    )
    return estimated(mean, variance, scale, seeds, problems, components)


def unpaired_difference(a: Array, b: Array) -> tuple[Array, MeanVariance]:
    """Return the mean of a - b, [..., S1, P] and [..., S2, P], and its variance; S1 and S2 are at least 2."""
    problems = a.shape[-1]
    tables = [two_way(a), two_way(b)] if problems > 1 else []
    runs = np.stack(
        [table.variance.runs for table in tables] or [arm.mean(-1).var(-1, ddof=1) / arm.shape[-2] for arm in (a, b)]
    )
    degrees = np.array([a.shape[-2] - 1, b.shape[-2] - 1]).reshape(2, *[1] * (runs.ndim - 1))
    spread = (runs**2 / degrees).sum(0)
    together = np.where(spread > 0, runs.sum(0) ** 2 / np.where(spread > 0, spread, 1.0), degrees.sum())
    difference = a.mean(-2) - b.mean(-2)
    if not tables:
        return difference.mean(-1), MeanVariance(runs.sum(0), np.zeros_like(together), together, together)
    rest = sum(table.rest / (table.seeds * problems) for table in tables)
    between = np.maximum(difference.var(-1, ddof=1) / problems - rest, 0.0)
    return difference.mean(-1), MeanVariance(runs.sum(0), between, together, np.full_like(together, problems - 1.0))


def _components(table: TwoWay) -> VarianceComponents:
    """The analysis-of-variance estimates, cut off at 0."""
    return VarianceComponents(
        max(0.0, float(table.runs - table.rest)) / table.count,
        max(0.0, float(table.problems - table.rest)) / table.seeds,
        float(table.rest),
    )


def estimated(
    mean: Array,
    variance: MeanVariance,
    scale: float,
    seeds: int,
    problems: int,
    components: VarianceComponents | None = None,
) -> CrossedEstimate:
    """The estimate of a ``mean`` of that ``variance``.

    Args:
        scale: the largest score; a spread that is nothing next to it is rounding.
    """
    error = float(np.sqrt(variance.total))
    if error <= _NO_SPREAD * scale:
        return _constant(float(mean), scale, seeds, problems, components)
    half = float(half_width(variance))
    p = float(p_value(np.asarray(mean), variance))
    value = float(mean)
    return CrossedEstimate(value, value - half, value + half, error, p, seeds, problems, components)


def _one_way(values: Array, scale: float, seeds: int, problems: int) -> CrossedEstimate:
    """Student's t over the one way that has more than one value."""
    n, value = len(values), float(values.mean())
    if n < 2:
        return CrossedEstimate(value, None, None, None, None, seeds, problems, None)
    error = float(values.std(ddof=1)) / n**0.5
    if error <= _NO_SPREAD * scale:
        return _constant(value, scale, seeds, problems, None)
    none, degrees = np.zeros(()), np.asarray(n - 1.0)
    variance = MeanVariance(np.asarray(error**2), none, degrees, degrees)
    half, p = float(half_width(variance)), float(p_value(np.asarray(value), variance))
    return CrossedEstimate(value, value - half, value + half, error, p, seeds, problems, None)


def _constant(
    value: float, scale: float, seeds: int, problems: int, components: VarianceComponents | None
) -> CrossedEstimate:
    """Values that do not vary tell nothing of their spread; equal arms differ by 0 all the same."""
    p = 1.0 if abs(value) <= _NO_SPREAD * scale else None
    return CrossedEstimate(value, None, None, None, p, seeds, problems, components)
