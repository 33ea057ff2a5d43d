"""Summaries over tasks that a few runs can carry (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", arXiv:2108.13264), with bootstrap intervals.

Scores are [runs, tasks]: one number a run and task, on one scale. Theirs is the stratified bootstrap: within every task
runs are resampled with replacement, and the tasks are kept, so the intervals are about these tasks. That takes runs of
different tasks to be independent. Where one run gives a whole row, as one model on several benchmarks, ``together``
draws rows: its luck moves all tasks at once. With few runs either covers less than it says (docs/statistics.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.stats.intervals import LEVEL
from rlvr_cli.stats.scores import Array, score_matrix

DRAWS = 2000
_NO_SPREAD = 1e-12
_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


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
