"""Pearson's and Spearman's coefficients of paired values, with intervals for clustered values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.stats.intervals import LEVEL, Estimate
from rlvr_cli.stats.scores import Array

# With fewer informative clusters, bootstrap intervals are too narrow.
FEWEST_CLUSTERS = 10


def pearson(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float | None:
    """Return Pearson's r; None if one of the two is constant, or there are fewer than two pairs."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if len(a) < 2:
        return None
    a, b = a - a.mean(), b - b.mean()
    # Squares of tiny numbers underflow.
    largest = np.abs(a).max(), np.abs(b).max()
    if not all(largest):
        return None
    a, b = a / largest[0], b / largest[1]
    return float(np.clip((a @ b) / np.sqrt((a @ a) * (b @ b)), -1.0, 1.0))


def spearman(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float | None:
    """Return Spearman's rank correlation, ties at their mean rank; None as in :func:`pearson`."""
    from scipy.stats import rankdata

    return pearson(rankdata(first), rankdata(second))


def clustered_pearson(
    x: ArrayLike, y: ArrayLike, clusters: ArrayLike, *, seed: int = 0, draws: int = 2000
) -> Estimate | None:
    """Return r = cov(x, y) / (sd(x) sd(y)) with the percentile interval of a bootstrap over clusters.

    Cameron, Gelbach and Miller 2008, "Bootstrap-based improvements for inference with clustered errors"; random stream
    ``stats/correlation`` of ``seed``. Draws with constant x or y are dropped. The interval is None if fewer than 10
    clusters have a value other than the most common one, of x or of y: a word that occurs once has the same reward in
    every draw.

    Args:
        x, y: (N,) values. clusters: (N,) labels.

    Returns:
        None if x or y is constant.

    Raises ValueError for unequal lengths, NaN or infinity.
    """
    first, second = (np.asarray(values, dtype=np.float64) for values in (x, y))
    labels = np.unique(np.asarray(clusters), return_inverse=True)[1]
    if first.ndim != 1 or not first.shape == second.shape == labels.shape:
        raise ValueError(f"values and clusters must have equal lengths; got shapes {first.shape}, {second.shape}")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("values must not contain NaN or infinity")
    if first.size == 0 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    # Centered against cancellation.
    first, second = first - first.mean(), second - second.mean()
    products = (np.ones_like(first), first, second, first * first, second * second, first * second)
    sums: Array = np.stack([np.bincount(labels, weights=values) for values in products]).astype(np.float64)
    value = float(_coefficient(sums.sum(axis=1)))
    count = sums.shape[1]
    if min(_informative_clusters(first, labels), _informative_clusters(second, labels)) < FEWEST_CLUSTERS:
        return Estimate(value, None, None, count)
    generator = np.random.default_rng(stream_seed(seed, "stats", "correlation"))
    drawn: Array = generator.multinomial(count, np.full(count, 1 / count), size=draws).astype(np.float64)
    coefficients = _coefficient(sums @ drawn.T)
    low, high = np.quantile(coefficients[np.isfinite(coefficients)], ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Estimate(value, float(low), float(high), count)


def clustered_spearman(
    x: ArrayLike, y: ArrayLike, clusters: ArrayLike, *, seed: int = 0, draws: int = 2000
) -> Estimate | None:
    """Return :func:`clustered_pearson` of the ranks, ties at their mean rank; draws keep the ranks among all values."""
    from scipy.stats import rankdata

    return clustered_pearson(rankdata(x), rankdata(y), clusters, seed=seed, draws=draws)


def _informative_clusters(values: Array, labels: np.ndarray) -> int:
    """Return the number of clusters with a value other than the most common one."""
    distinct, counts = np.unique(values, return_counts=True)
    return len(np.unique(labels[values != distinct[np.argmax(counts)]]))


def _coefficient(sums: Array) -> Array:
    """Return r from the sums (6, ...) of 1, x, y, xx, yy, xy; NaN if x or y is constant."""
    n, x, y, xx, yy, xy = sums
    spread = (xx - x * x / n) * (yy - y * y / n)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = (xy - x * y / n) / np.sqrt(np.where(spread > 1e-12 * (xx * yy + 1e-300), spread, np.nan))
    coefficient: Array = np.clip(ratio, -1.0, 1.0)
    return coefficient
