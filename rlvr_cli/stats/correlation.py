"""Pearson's and Spearman's coefficients of paired values; with intervals where the values come in clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.stats.intervals import LEVEL
from rlvr_cli.stats.scores import Array

# Fewer that tell anything, and a bootstrap over them is too sure of itself.
FEWEST_CLUSTERS = 10


def pearson(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float | None:
    """Pearson's r; None where one of the two does not vary, or there are fewer than two pairs."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if len(a) < 2:
        return None
    a, b = a - a.mean(), b - b.mean()
    # Each scaled by its largest first: squares of tiny numbers would vanish.
    largest = np.abs(a).max(), np.abs(b).max()
    if not all(largest):
        return None
    a, b = a / largest[0], b / largest[1]
    return float(np.clip((a @ b) / np.sqrt((a @ a) * (b @ b)), -1.0, 1.0))


def spearman(first: Sequence[float] | np.ndarray, second: Sequence[float] | np.ndarray) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None as in :func:`pearson`."""
    from scipy.stats import rankdata

    return pearson(rankdata(first), rankdata(second))


@dataclass(frozen=True)
class Correlation:
    """A coefficient with its 95% interval; ``low`` and ``high`` None where too few clusters tell anything of it."""

    value: float
    low: float | None
    high: float | None

    def as_json(self) -> dict[str, float | None]:
        """The coefficient as JSON values."""
        return {"value": self.value, "low": self.low, "high": self.high}


def clustered_pearson(
    x: ArrayLike, y: ArrayLike, clusters: ArrayLike, *, seed: int = 0, draws: int = 2000
) -> Correlation | None:
    """r = cov(x, y) / (sd(x) sd(y)), with the percentile interval of a bootstrap over clusters.

    Completions of one problem share its difficulty, so whole clusters are resampled (Cameron, Gelbach and Miller 2008,
    "Bootstrap-based improvements for inference with clustered errors"). Random numbers come from the stream
    ``stats/correlation`` of ``seed``. Draws in which x or y does not vary have no coefficient and are left out. There
    is no interval where fewer than 10 clusters hold a value other than the most common one, of x or of y: a word that
    occurs once goes with one reward, in every draw that has it.

    Args:
        x, y: (N,) values. clusters: (N,) which cluster each belongs to.

    Returns:
        None where x or y does not vary, so that there is no coefficient.

    Raises ValueError for unequal lengths, or NaN or infinity among the values.
    """
    one, other = (np.asarray(values, dtype=np.float64) for values in (x, y))
    which = np.unique(np.asarray(clusters), return_inverse=True)[1]
    if one.ndim != 1 or not one.shape == other.shape == which.shape:
        raise ValueError(f"a correlation is of lists of one length, not of shapes {one.shape}, {other.shape}")
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise ValueError("a correlation of NaN or infinity")
    if one.size == 0 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    # Around the means, so that differences of large sums do not lose the digits.
    one, other = one - one.mean(), other - other.mean()
    products = (np.ones_like(one), one, other, one * one, other * other, one * other)
    sums: Array = np.stack([np.bincount(which, weights=values) for values in products]).astype(np.float64)
    value = float(_coefficient(sums.sum(axis=1)))
    count = sums.shape[1]
    if min(_telling(one, which), _telling(other, which)) < FEWEST_CLUSTERS:
        return Correlation(value, None, None)
    generator = np.random.default_rng(stream_seed(seed, "stats", "correlation"))
    drawn: Array = generator.multinomial(count, np.full(count, 1 / count), size=draws).astype(np.float64)
    found = _coefficient(sums @ drawn.T)
    low, high = np.quantile(found[np.isfinite(found)], ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Correlation(value, float(low), float(high))


def clustered_spearman(
    x: ArrayLike, y: ArrayLike, clusters: ArrayLike, *, seed: int = 0, draws: int = 2000
) -> Correlation | None:
    """Pearson's coefficient of the ranks, equal values sharing the mean of theirs; as :func:`clustered_pearson`.

    The bootstrap draws the ranks, which are those among all values: they are not recomputed for each draw.
    """
    from scipy.stats import rankdata

    return clustered_pearson(rankdata(x), rankdata(y), clusters, seed=seed, draws=draws)


def _telling(values: Array, which: np.ndarray) -> int:
    """How many clusters hold a value other than the most common one."""
    distinct, counts = np.unique(values, return_counts=True)
    return len(np.unique(which[values != distinct[np.argmax(counts)]]))


def _coefficient(sums: Array) -> Array:
    """From the sums (6, ...) of 1, x, y, xx, yy, xy; NaN where x or y does not vary."""
    n, x, y, xx, yy, xy = sums
    spread = (xx - x * x / n) * (yy - y * y / n)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (xy - x * y / n) / np.sqrt(np.where(spread > 1e-12 * (xx * yy + 1e-300), spread, np.nan))
    coefficient: Array = np.clip(found, -1.0, 1.0)
    return coefficient
