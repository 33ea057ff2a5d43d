"""95% intervals of means and differences over seeds x problems, both random effects.

Model: y[s, p] = mu + run[s] + problem[p] + residual[s, p], all of mean zero and independent, one value per cell. Then

    Var(mean) = run variance / S + problem variance / P + residual variance / (S P)

Miller's one-way standard error over problems omits the first term.

A mean over tasks weights each task's table of seeds x problems equally. Tasks are fixed and share no problem, so their
problem terms add: sum over tasks of B_t / T^2. Run terms add as well, sum of A_t / T^2, unless every run answers all
tasks (``together``): then the term is Var(mean of a run over tasks) / S. Sums of terms have the degrees of freedom of
Satterthwaite 1946 and Welch 1947.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.stats.intervals import LEVEL
from rlvr_cli.stats.scores import Array, validate_pairs, validate_problems, validate_scores

_BISECTIONS = 60
_LEAST_P = 1e-100
_TIE = 1e-12
_NO_SPREAD = 1e-12


@dataclass(frozen=True)
class Term:
    """An estimated variance component of a mean and its degrees of freedom, arrays of shape [...]."""

    variance: Array
    degrees: Array


@dataclass(frozen=True)
class MeanVariance:
    """The estimated variance of a mean as two nearly independent terms.

    ``runs``: MS_runs / (S P) with S - 1 degrees of freedom; includes the residual.
    ``problems``: max(MS_problems - MS_residual, 0) / (S P).
    """

    runs: Term
    problems: Term

    @property
    def total(self) -> Array:
        return self.runs.variance + self.problems.variance


@dataclass(frozen=True)
class TwoWay:
    """Mean and mean squares of tables [..., S, P] (Searle, Casella and McCulloch 1992, "Variance Components")."""

    mean: Array
    runs: Array
    problems: Array
    residual: Array
    seeds: int
    count: int

    @property
    def variance(self) -> MeanVariance:
        """The variance of the mean, from at least two seeds and two problems.

        Scores are counts, so the means of few runs may tie. Ties do not imply zero variance: the run term falls back to
        the residual mean square.
        """
        cells = self.seeds * self.count
        ones = np.ones_like(self.mean)
        return MeanVariance(
            Term(
                np.where(self.runs <= _TIE * self.residual, self.residual, self.runs) / cells, ones * (self.seeds - 1)
            ),
            Term(np.maximum(self.problems - self.residual, 0.0) / cells, ones * (self.count - 1)),
        )


def two_way(tables: Array) -> TwoWay:
    """Return the two-way analysis of variance of tables [..., S, P], S and P at least 2."""
    seeds, count = tables.shape[-2:]
    mean = tables.mean((-2, -1))
    rows = tables.mean(-1) - mean[..., None]
    columns = tables.mean(-2) - mean[..., None]
    total = ((tables - mean[..., None, None]) ** 2).sum((-2, -1))
    between_rows, between_columns = count * (rows**2).sum(-1), seeds * (columns**2).sum(-1)
    residual = np.maximum(total - between_rows - between_columns, 0.0)
    degrees = (seeds - 1, count - 1)
    return TwoWay(
        mean,
        between_rows / degrees[0],
        between_columns / degrees[1],
        residual / (degrees[0] * degrees[1]),
        seeds,
        count,
    )


def half_width(variance: MeanVariance, alpha: float | Array = 1 - LEVEL) -> Array:
    """Return the half-width of the interval of level 1 - ``alpha``, with the t quantile of each term:

    h^2 = t(S - 1)^2 * runs + t(P - 1)^2 * problems, after Cochran and Cox 1957, "Experimental Designs", who weight
    the quantiles and not their squares. It covers 94% or more in the paired settings of docs/statistics.md.
    """
    runs, problems = (
        _quantile(term.degrees, alpha) ** 2 * term.variance for term in (variance.runs, variance.problems)
    )
    width: Array = np.sqrt(runs + problems)
    return width


def p_value(mean: Array, variance: MeanVariance) -> Array:
    """Return the two-sided p-value of a zero mean: the ``alpha`` at which the interval just includes 0."""
    low, high = np.full_like(mean, np.log(_LEAST_P)), np.zeros_like(mean)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        reaches = half_width(variance, np.exp(middle)) >= np.abs(mean)
        low, high = np.where(reaches, middle, low), np.where(reaches, high, middle)
    return np.exp(high)


def _quantile(degrees: Array, alpha: float | Array) -> Array:
    """Return the value that |t| exceeds with probability ``alpha``, from the lower tail for precision."""
    from scipy.special import stdtrit

    quantile: Array = -stdtrit(degrees, np.asarray(alpha) / 2)
    return quantile


@dataclass(frozen=True)
class VarianceComponents:
    """Variances between runs, between problems, and residual (sampling, run x problem); 0 or more."""

    run: float
    problem: float
    residual: float


@dataclass(frozen=True)
class CrossedEstimate:
    """A mean over ``seeds`` runs and ``problems``, its 95% interval and the two-sided p-value of a zero mean.

    p < 0.05 if and only if the interval excludes 0. ``low`` and ``high`` are None without an estimate of the variance:
    one seed and one problem, or constant values.
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
        """True if the interval includes the variance between runs; with one seed it is conditional on these weights."""
        return self.seeds > 1

    @property
    def spread_of_problems(self) -> bool:
        """True if the interval includes the variance between problems."""
        return self.problems > 1

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "spread_of_runs": self.spread_of_runs, "spread_of_problems": self.spread_of_problems}


def crossed_interval(*tables: ArrayLike, together: bool = False, tested: bool = True) -> CrossedEstimate:
    """Estimate the mean of scores [S seeds, P problems]; with several tasks, the mean over their tables.

    Two-way random effects with Cochran's half-width (:func:`half_width`). With one seed it is Student's t over
    problems, without the variance between runs; with one problem, over seeds.

    Args:
        tables: one per task. together: row s of every table is the same run. tested: compute the p-value.
    Raises ValueError as ``validate_scores``, without tables, for several tasks if one has a single problem, and for
    ``together`` with unequal numbers of runs.
    """
    return _estimate([[validate_scores(table) for table in tables]], together=together, tested=tested)


def crossed_difference(
    a: Sequence[ArrayLike], b: Sequence[ArrayLike], *, paired: bool = True, together: bool = False
) -> CrossedEstimate:
    """Estimate the mean of a - b, two arms with a table [seeds, problems] for each task, over the same problems.

    Pairing removes the shared effects of problem and seed. Unpaired, the run terms of both arms add, and the problem
    term is that of the differences of the problems' means minus the residual; ``seeds`` is the smaller number.

    Args:
        paired: row s of both arms has the same seed. together: as for ``crossed_interval``.
    Raises ValueError as ``crossed_interval``, for unequal problems and, if ``paired``, unequal numbers of seeds.
    """
    if paired:
        pairs = [validate_pairs(*both) for both in zip(a, b, strict=True)]
        return _estimate([[first - second for first, second in pairs]], together=together)
    pairs = [validate_problems(*both) for both in zip(a, b, strict=True)]
    return _estimate([[first for first, _ in pairs], [second for _, second in pairs]], together=together)


def unpaired_difference(a: Array, b: Array) -> tuple[Array, MeanVariance]:
    """Return the mean of a - b, [..., S1, P] and [..., S2, P], and its variance; S1 and S2 are at least 2."""
    return (a.mean(-2) - b.mean(-2)).mean(-1), MeanVariance(
        _sum_terms([_run_term(a), _run_term(b)]), _problem_term([a, b])
    )


def _estimate(arms: Sequence[Sequence[Array]], *, together: bool, tested: bool = True) -> CrossedEstimate:
    """Estimate the mean over tasks of one arm, or of the first minus the second; one table per task."""
    tasks = list(zip(*arms, strict=True))
    tables = [table for arm in arms for table in arm]
    if not tasks:
        raise ValueError("tables must not be empty")
    if len(tasks) > 1 and any(table.shape[1] < 2 for table in tables):
        raise ValueError("every task must have at least two problems")
    if together and any(len({len(table) for table in arm}) > 1 for arm in arms):
        raise ValueError("tasks of the same runs must have equal numbers of runs")
    value = float(np.mean([_difference(task).mean() for task in tasks]))
    seeds, problems = min(map(len, tables)), sum(task[0].shape[1] for task in tasks)
    if seeds * problems < 2:
        return CrossedEstimate(value, None, None, None, None, seeds, problems, None)
    between = _average_terms([_problem_term(task) for task in tasks])
    if seeds < 2:
        variance = MeanVariance(between, Term(np.zeros(()), between.degrees))
    else:
        runs = [
            _shared_run_term(arm) if together else _average_terms([_run_term(table) for table in arm]) for arm in arms
        ]
        variance = MeanVariance(_sum_terms(runs), between)
    alone = len(tasks) == 1 and seeds > 1 and problems > 1
    components = _variance_components(tables, between) if alone else None
    sizes = (seeds, problems, components)
    # A deviation negligible relative to the values is rounding.
    error, negligible = float(np.sqrt(variance.total)), _NO_SPREAD * max(float(np.abs(table).max()) for table in tables)
    if error <= negligible:
        # Constant values; equal arms differ by exactly 0.
        p = 1.0 if tested and abs(value) <= negligible else None
        return CrossedEstimate(value, None, None, None, p, *sizes)
    half = float(half_width(variance))
    p = float(p_value(np.asarray(value), variance)) if tested else None
    return CrossedEstimate(value, value - half, value + half, error, p, *sizes)


def _difference(arms: Sequence[Array]) -> Array:
    means = [arm.mean(-2) for arm in arms]
    difference: Array = means[0] if len(means) == 1 else means[0] - means[1]
    return difference


def _run_term(table: Array) -> Term:
    """Return the run term of the variance of the mean of [..., S, P], S at least 2."""
    seeds, problems = table.shape[-2:]
    if problems > 1:
        return two_way(table).variance.runs
    variance = table.mean(-1).var(-1, ddof=1) / seeds
    return Term(variance, np.full_like(variance, seeds - 1.0))


def _shared_run_term(tables: Sequence[Array]) -> Term:
    """Return the run term of the mean over tasks answered by the same runs."""
    rows = np.mean([table.mean(1) for table in tables], axis=0)
    spread, separate = rows.var(ddof=1) / len(rows), _average_terms([_run_term(table) for table in tables]).variance
    # Ties are a coincidence of counts, as in ``TwoWay.variance``.
    return Term(np.where(spread <= _TIE * separate, separate, spread), np.asarray(len(rows) - 1.0))


def _problem_term(arms: Sequence[Array]) -> Term:
    """Return the problem term of a task in the variance of the mean, or of the difference."""
    means = _difference(arms)
    problems = means.shape[-1]
    degrees = np.full(means.shape[:-1], max(problems - 1.0, 1.0))
    if problems < 2:
        return Term(np.zeros_like(degrees), degrees)
    seeds = [arm.shape[-2] for arm in arms]
    tables = [two_way(arm) for arm in arms] if min(seeds) > 1 else []
    residual = sum(table.residual / (table.seeds * problems) for table in tables)
    return Term(np.maximum(means.var(-1, ddof=1) / problems - residual, 0.0), degrees)


def _sum_terms(terms: Sequence[Term]) -> Term:
    """Sum independent terms, with Satterthwaite's degrees of freedom."""
    total = np.asarray(sum(term.variance for term in terms))
    degrees = np.asarray(sum(term.degrees for term in terms))
    spread = np.asarray(sum(term.variance**2 / np.where(term.variance > 0, term.degrees, 1.0) for term in terms))
    return Term(total, np.where(spread > 0, total**2 / np.where(spread > 0, spread, 1.0), degrees))


def _average_terms(terms: Sequence[Term]) -> Term:
    return _sum_terms([Term(term.variance / len(terms) ** 2, term.degrees) for term in terms])


def _variance_components(arms: Sequence[Array], between: Term) -> VarianceComponents:
    """Return the ANOVA estimates of one task, truncated at 0."""
    tables = [two_way(arm) for arm in arms]
    return VarianceComponents(
        sum(max(0.0, float(table.runs - table.residual)) / table.count for table in tables),
        float(between.variance) * tables[0].count,
        sum(float(table.residual) for table in tables),
    )
