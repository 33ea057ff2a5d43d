"""Means over tasks with their 95% intervals, and the summaries over tasks that a few runs can carry.

Each task is a table of seeds x problems of its own; the tasks are those there are. The mean over T tasks of the tasks'
means, with equal weights, has a variance with the two parts of ``clustered``:

    runs:      Var(row mean) / S               where every run answers all tasks (``together``): its luck moves all of
                                               them, and a row mean is a run's mean over the tasks
               sum over tasks of A_t / T^2     where every task has runs of its own
    problems:  sum over tasks of B_t / T^2     no two tasks share a problem

with A_t and B_t of each task's table, and Welch's degrees of freedom for a sum (Satterthwaite 1946).

The summaries are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
arXiv:2108.13264, with the stratified bootstrap: scores are [runs, tasks], one number a run and task, on one scale;
within every task runs are resampled with replacement, and the tasks are kept, so the intervals are about these tasks.
That takes runs of different tasks to be independent. Where one run gives a whole row, as one model on several
benchmarks, ``together`` draws rows: its luck moves all tasks at once. With few runs either covers less than it says
(docs/statistics.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.stats.clustered import CrossedEstimate, MeanVariance, estimated, two_way
from rlvr_cli.stats.intervals import LEVEL
from rlvr_cli.stats.scores import Array, paired, same_problems, score_matrix

# A part of a variance and its degrees of freedom.
WeightedPart = tuple[float, float]
DRAWS = 2000
_NO_SPREAD = 1e-12
_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


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


def _runs(tables: list[Array], *, together: bool) -> list[WeightedPart]:
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


def _problems(table: Array) -> WeightedPart:
    """What the spread between the problems of one task adds to the variance of its mean."""
    seeds, problems = table.shape
    if seeds < 2:
        return float(table[0].var(ddof=1)) / problems, problems - 1.0
    return float(two_way(table).variance.problems), problems - 1.0


def _difference_problems(a: Array, b: Array) -> WeightedPart:
    """The same of the difference of two arms whose seeds are not shared."""
    problems = a.shape[1]
    rest = sum(float(two_way(arm).rest) / (len(arm) * problems) for arm in (a, b) if len(arm) > 1)
    if min(len(a), len(b)) < 2:
        rest = 0.0
    spread = float((a.mean(0) - b.mean(0)).var(ddof=1)) / problems
    return max(spread - rest, 0.0), problems - 1.0


def _estimate(
    value: float, runs: list[WeightedPart], problems: list[WeightedPart], tables: list[Array]
) -> CrossedEstimate:
    seeds, number = min(map(len, tables)), sum(table.shape[1] for table in tables)
    weighted = [(part / len(problems) ** 2, degrees) for part, degrees in problems]
    run_part, run_degrees = _sum(runs or weighted)
    problem_part, problem_degrees = _sum(weighted) if runs else (0.0, run_degrees)
    parts = (run_part, problem_part, run_degrees, problem_degrees)
    scale = max(float(np.abs(table).max()) for table in tables)
    return estimated(np.asarray(value), MeanVariance(*(np.asarray(part) for part in parts)), scale, seeds, number)


def _sum(parts: list[WeightedPart]) -> WeightedPart:
    """The sum of independent parts, and the degrees of freedom by which it is known."""
    total = sum(part for part, _ in parts)
    spread = sum(part**2 / degrees for part, degrees in parts)
    return total, total**2 / spread if spread > 0 else sum(degrees for _, degrees in parts)


@dataclass(frozen=True)
class Aggregate:
    """A summary with its 95% percentile interval; ``runs`` is the smaller number where there are two arms.

    ``low`` and ``high`` are None where resampling shows no spread: with one run, or where all resamples agree, as when
    every run of one arm is above every run of the other.
    """

    value: float
    low: float | None
    high: float | None
    runs: int
    tasks: int

    def as_json(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Profile:
    """The share of runs above each threshold, mean over tasks, with pointwise 95% intervals; all of one length.

    With one run the intervals have no width: it says nothing of others.
    """

    thresholds: Array
    values: Array
    low: Array
    high: Array


def interquartile_mean(scores: ArrayLike) -> float:
    """The mean of the middle half of all scores [runs, tasks] together.

    A quarter of the scores is cut off at each end, rounded down, as ``scipy.stats.trim_mean(scores, 0.25)``.
    Raises ValueError as ``score_matrix``.
    """
    return float(_middle_mean(score_matrix(scores, "runs", "tasks")))


def iqm_interval(scores: ArrayLike, *, seed: int = 0, draws: int = DRAWS, together: bool = False) -> Aggregate:
    """The interquartile mean of scores [runs, tasks] with its bootstrap interval, stratified or of rows ``together``.

    Random numbers come from the stream ``stats/iqm`` of ``seed``. Raises ValueError as ``score_matrix``.
    """
    data = score_matrix(scores, "runs", "tasks")
    replicates = _bootstrap(_middle_mean, [data], _generator(seed, "iqm"), draws, together)
    return _aggregate(float(_middle_mean(data)), replicates, *data.shape)


def probability_of_improvement(
    a: ArrayLike, b: ArrayLike, *, seed: int = 0, draws: int = DRAWS, together: bool = False
) -> Aggregate:
    """The chance that a run of a [R1, tasks] beats one of b [R2, tasks] on a task, mean over tasks.

    P = mean over tasks of mean over pairs of runs of [a > b] + [a = b] / 2 (the Mann-Whitney U statistic over
    R1 R2). It says how often, not by how much. The stream is ``stats/improvement`` of ``seed``.
    Raises ValueError as ``score_matrix`` and for unequal numbers of tasks.
    """
    first, second = score_matrix(a, "runs", "tasks"), score_matrix(b, "runs", "tasks")
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"{first.shape[1]} tasks in one arm and {second.shape[1]} in the other")
    replicates = _bootstrap(_improvement, [first, second], _generator(seed, "improvement"), draws, together)
    runs = min(len(first), len(second))
    return _aggregate(float(_improvement(first, second)), replicates, runs, first.shape[1])


def performance_profile(
    scores: ArrayLike, thresholds: ArrayLike, *, seed: int = 0, draws: int = DRAWS, together: bool = False
) -> Profile:
    """The share of runs whose score is above each threshold, mean over tasks.

    Curves that do not cross order two arms at every quantile. The stream is ``stats/profile`` of ``seed``.
    Raises ValueError as ``score_matrix`` and for thresholds that are not a list of finite numbers.
    """
    data = score_matrix(scores, "runs", "tasks")
    levels = np.asarray(thresholds, dtype=np.float64)
    if levels.ndim != 1 or levels.size == 0 or not np.all(np.isfinite(levels)):
        raise ValueError("thresholds are a list of one or more finite numbers")

    def above(tables: Array) -> Array:
        return np.stack([(tables > level).mean((-2, -1)) for level in levels], axis=-1)

    replicates = _bootstrap(above, [data], _generator(seed, "profile"), draws, together)
    low, high = np.quantile(replicates, _TAILS, axis=0)
    return Profile(levels, above(data), low, high)


def _middle_mean(tables: Array) -> Array:
    """The interquartile mean of tables [..., runs, tasks]."""
    flat = np.sort(tables.reshape(*tables.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    middle: Array = flat[..., cut : flat.shape[-1] - cut].mean(-1)
    return middle


def _improvement(a: Array, b: Array) -> Array:
    """The probability of improvement of tables [..., R1, tasks] over [..., R2, tasks]."""
    pairs = a[..., :, None, :] - b[..., None, :, :]
    chance: Array = ((np.sign(pairs) + 1) / 2).mean((-3, -2, -1))
    return chance


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng(stream_seed(seed, "stats", name))


def _bootstrap(
    statistic: Callable[..., Array], arms: list[Array], generator: np.random.Generator, draws: int, together: bool
) -> Array:
    """``statistic`` of ``draws`` resamples, of whole rows or in every task by itself: [draws, ...]."""
    if draws < 1:
        raise ValueError(f"draws must be at least 1, not {draws}")
    resampled = []
    for arm in arms:
        runs, tasks = arm.shape
        chosen = generator.integers(0, runs, size=(draws, runs, 1 if together else tasks))
        resampled.append(arm[chosen, np.arange(tasks)])
    return statistic(*resampled)


def _aggregate(value: float, replicates: Array, runs: int, tasks: int) -> Aggregate:
    low, high = np.quantile(replicates, _TAILS)
    if runs < 2 or high - low <= _NO_SPREAD * max(abs(low), abs(high)):
        return Aggregate(value, None, None, runs, tasks)
    return Aggregate(value, float(low), float(high), runs, tasks)
