"""The bootstrap clustered by problem and seed, for looking at; ``clustered`` makes the intervals that are reported."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.stats.intervals import LEVEL
from rlvr_cli.stats.scores import Array, score_matrix


def pigeonhole_interval(values: ArrayLike, *, seed: int = 0, draws: int = 2000) -> tuple[float, float]:
    """The 95% percentile interval of the mean of scores [S, P] when seeds and problems are both resampled.

    Seeds and problems are resampled with replacement, independently; a cell counts as often as its row times its
    column (Owen 2007, "The pigeonhole bootstrap"). It counts the variance of the rest three times and that of runs
    (S - 1) / S times: with few seeds it is too long where samples are noisy and too short where runs differ
    (docs/statistics.md), which is why it is not the default. Random numbers come from the stream ``stats/pigeonhole``
    of ``seed``. Raises ValueError as ``score_matrix``.
    """
    data = score_matrix(values)
    generator = np.random.default_rng(stream_seed(seed, "stats", "pigeonhole"))
    low, high = np.quantile(pigeonhole_means(data, generator, draws), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


def pigeonhole_means(tables: Array, generator: np.random.Generator, draws: int) -> Array:
    """The means [..., draws] of resampled tables [..., S, P]; all tables are resampled alike."""
    rows, columns = (generator.multinomial(n, np.full(n, 1 / n), size=draws) for n in tables.shape[-2:])
    cells = tables.shape[-2] * tables.shape[-1]
    means: Array = np.einsum("...dp,dp->...d", rows.astype(np.float64) @ tables, columns.astype(np.float64)) / cells
    return means
