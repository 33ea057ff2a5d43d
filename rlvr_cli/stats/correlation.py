"""Correlation coefficients of paired values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
