"""p values of a family of comparisons, corrected for their number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given (Holm 1979, "A Simple Sequentially
    Rejective Multiple Test Procedure").

    The i-th smallest of m becomes max over j <= i of min(1, (m - j + 1) p_(j)). Rejecting those at or below alpha keeps
    the chance of any false rejection at alpha or less, however the tests depend on each other.
    Raises ValueError for a value outside [0, 1] or NaN.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not np.all((p >= 0.0) & (p <= 1.0)):
        raise ValueError("p values are a list of numbers between 0 and 1")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(np.arange(len(p), 0, -1) * p[order]))
    return [float(value) for value in adjusted]
