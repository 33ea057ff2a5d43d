"""95% intervals of means over tasks, each a table of seeds x problems of its own; the tasks are those there are.

The mean over T tasks of the tasks' means, with equal weights. Its variance has the two parts of ``crossed``:

    runs:      Var(row mean) / S               where every run answers all tasks (``together``): its luck moves all of
                                               them, and a row mean is a run's mean over the tasks
               sum over tasks of A_t / T^2     where every task has runs of its own
    problems:  sum over tasks of B_t / T^2     no two tasks share a problem

with A_t and B_t of each task's table, and Welch's degrees of freedom for a sum (Satterthwaite 1946).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.stats.clustered import CrossedEstimate, estimated
from rlvr_cli.stats.crossed import MeanVariance, two_way
from rlvr_cli.stats.scores import Array, paired, same_problems, score_matrix

# A part of a variance and its degrees of freedom.
Part = tuple[float, float]


def tasks_interval(tables: Sequence[ArrayLike], *, together: bool = False) -> CrossedEstimate:
    """The mean over tasks of scores [S seeds, P problems], a table a task.

    Args:
        together: row s of every table is the same run.
    With one seed the interval is over problems alone. ``problems`` of the result is their number in all tasks.
    Raises ValueError as ``score_matrix``, for no task, one problem in a task, and ``together`` with unequal numbers of
    runs.
    """
    data = _checked([score_matrix(table) for table in tables], together=together)
    means = np.array([table.mean() for table in data])
    return _estimate(float(means.mean()), _runs(data, together=together), [_problems(table) for table in data], data)


def paired_tasks_interval(a: Sequence[ArrayLike], b: Sequence[ArrayLike], *, together: bool = False) -> CrossedEstimate:
    """The mean over tasks of a - b, tables of the same seeds and problems: ``tasks_interval`` of the differences.

    Raises ValueError as that, and for arms of unequal shape.
    """
    both = [paired(one, other) for one, other in zip(a, b, strict=True)]
    return tasks_interval([one - other for one, other in both], together=together)


def unpaired_tasks_interval(
    a: Sequence[ArrayLike], b: Sequence[ArrayLike], *, together: bool = False
) -> CrossedEstimate:
    """The mean over tasks of a - b, tables [S1, P] and [S2, P] of the same problems whose seeds are not shared.

    ``seeds`` of the result is the smaller number. Raises ValueError as ``tasks_interval``, and for unequal problems.
    """
    both = [same_problems(one, other) for one, other in zip(a, b, strict=True)]
    arms = [_checked([pair[place] for pair in both], together=together) for place in (0, 1)]
    value = float(np.mean([one.mean() - other.mean() for one, other in both]))
    runs = [part for arm in arms for part in _runs(arm, together=together)]
    smaller = min(arms, key=lambda arm: min(map(len, arm)))
    alone = any(len(table) < 2 for arm in arms for table in arm)
    return _estimate(value, [] if alone else runs, [_difference_problems(*pair) for pair in both], smaller)


def _checked(tables: list[Array], *, together: bool) -> list[Array]:
    if not tables:
        raise ValueError("no task")
    if any(table.shape[1] < 2 for table in tables):
        raise ValueError("at least two problems in every task")
    if together and len({len(table) for table in tables}) > 1:
        raise ValueError("runs that answer all tasks are as many in each")
    return tables


def _runs(tables: list[Array], *, together: bool) -> list[Part]:
    """The run parts of the mean over tasks; none with one run, whose luck cannot be told from the method."""
    if any(len(table) < 2 for table in tables):
        return []
    own = [(float(two_way(table).variance.runs) / len(tables) ** 2, len(table) - 1.0) for table in tables]
    if not together:
        return own
    rows = np.mean([table.mean(1) for table in tables], axis=0)
    spread = float(rows.var(ddof=1)) / len(rows)
    # Means that agree to the last digit are a coincidence of counts, as in ``TwoWay.variance``.
    tied = spread <= 1e-12 * sum(part for part, _ in own)
    return [(sum(part for part, _ in own) if tied else spread, len(rows) - 1.0)]


def _problems(table: Array) -> Part:
    """What the spread between the problems of one task adds to the variance of its mean."""
    seeds, problems = table.shape
    if seeds < 2:
        return float(table[0].var(ddof=1)) / problems, problems - 1.0
    return float(two_way(table).variance.problems), problems - 1.0


def _difference_problems(a: Array, b: Array) -> Part:
    """The same of the difference of two arms whose seeds are not shared."""
    problems = a.shape[1]
    rest = sum(float(two_way(arm).rest) / (len(arm) * problems) for arm in (a, b) if len(arm) > 1)
    if min(len(a), len(b)) < 2:
        rest = 0.0
    spread = float((a.mean(0) - b.mean(0)).var(ddof=1)) / problems
    return max(spread - rest, 0.0), problems - 1.0


def _estimate(value: float, runs: list[Part], problems: list[Part], tables: list[Array]) -> CrossedEstimate:
    seeds, number = min(map(len, tables)), sum(table.shape[1] for table in tables)
    weighted = [(part / len(problems) ** 2, degrees) for part, degrees in problems]
    run_part, run_degrees = _sum(runs or weighted)
    problem_part, problem_degrees = _sum(weighted) if runs else (0.0, run_degrees)
    parts = (run_part, problem_part, run_degrees, problem_degrees)
    scale = max(float(np.abs(table).max()) for table in tables)
    return estimated(np.asarray(value), MeanVariance(*(np.asarray(part) for part in parts)), scale, seeds, number)


def _sum(parts: list[Part]) -> Part:
    """The sum of independent parts, and the degrees of freedom by which it is known."""
    total = sum(part for part, _ in parts)
    spread = sum(part**2 / degrees for part, degrees in parts)
    return total, total**2 / spread if spread > 0 else sum(degrees for _, degrees in parts)
