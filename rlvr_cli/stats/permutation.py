"""Permutation test of the runs of two arms, and Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.stats.clustered import unpaired_difference
from rlvr_cli.stats.scores import Array, validate_problems

_BATCH = 512


@dataclass(frozen=True)
class PermutationTest:
    """A two-sided p-value, the smallest attainable one, and the number of permutations: all (``exact``) or sampled."""

    p_value: float
    smallest: float
    permutations: int
    exact: bool


def permutation_test(a: ArrayLike, b: ArrayLike, *, seed: int = 0, draws: int = 9999) -> PermutationTest | None:
    """Permute the runs of a [S1, P] and b [S2, P] between the arms; the statistic is the studentised mean difference.

    Whole runs are permuted: the problems of a run are correlated, so sign flips per problem mistake the variance
    between runs for an effect of the method. p is exact if runs are exchangeable; shared seeds make it conservative.
    Dividing by the crossed standard error keeps it near its level if methods differ by problem but not in the mean
    (Janssen 1997; Chung and Romano 2013). All permutations are enumerated up to ``draws`` + 1; else ``draws`` random
    ones, from the stream ``stats/permutation`` of ``seed``, plus the observed one (Phipson and Smyth 2010). None with
    fewer than two seeds in an arm or two problems. Raises ValueError as ``validate_problems`` and for ``draws`` below
    1.
    """
    if draws < 1:
        raise ValueError(f"draws must be at least 1; got {draws}")
    first, second = validate_problems(a, b)
    if min(len(first), len(second)) < 2 or first.shape[1] < 2:
        return None
    from scipy import stats

    # Each problem is centered against cancellation.
    runs = np.concatenate([first, second])
    runs = runs - runs.mean(0)
    total = comb(len(runs), len(first))
    exact = total <= draws + 1
    rows = np.arange(len(runs))
    result = stats.permutation_test(
        (rows[: len(first)], rows[len(first) :]),
        lambda left, right, axis: np.abs(_studentise(runs[left], runs[right])).round(9),
        n_resamples=total if exact else draws,
        batch=_BATCH,
        alternative="greater",
        rng=np.random.default_rng(stream_seed(seed, "stats", "permutation")),
    )
    permutations = total if exact else draws + 1
    # With arms of equal size a permutation and its mirror image have the same statistic.
    smallest = max((2 if len(first) == len(second) else 1) / total, 0.0 if exact else 1 / permutations)
    return PermutationTest(float(result.pvalue), smallest, permutations, exact)


def _studentise(a: Array, b: Array) -> Array:
    """Return the mean difference of a [..., S1, P] and b [..., S2, P] divided by its crossed standard error."""
    mean, variance = unpaired_difference(a, b)
    # Constant runs: a difference of 0 stays 0, any other is extreme.
    scale = max(float(np.abs(a).max()), float(np.abs(b).max()))
    floor = (1e-7 * scale) ** 2 if scale > 0 else 1.0
    statistic: Array = np.where(np.abs(mean) <= 1e-12 * scale, 0.0, mean) / np.sqrt(np.maximum(variance.total, floor))
    return statistic


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's step-down adjusted p-values, in the order of the input (Holm 1979, "A Simple Sequentially
    Rejective Multiple Test Procedure").

    The i-th smallest of m becomes max over j <= i of min(1, (m - j + 1) p_(j)). It controls the family-wise error rate
    under any dependence. Raises ValueError for a value outside [0, 1] or NaN.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not np.all((p >= 0.0) & (p <= 1.0)):
        raise ValueError("p-values must be a list of numbers between 0 and 1")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(np.arange(len(p), 0, -1) * p[order]))
    return [float(value) for value in adjusted]
