"""Correlations of clustered values against scipy's, and how often their intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from rlvr_cli.stats.correlation import clustered_pearson as pearson
from rlvr_cli.stats.correlation import clustered_spearman as spearman


def clustered(seed: int, clusters: int, size: int, strength: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x and y share ``strength`` of what varies between clusters; the rest of both is noise."""
    generator = np.random.default_rng(seed)
    which = np.repeat(np.arange(clusters), size)
    shared, own_x, own_y = generator.normal(size=(3, clusters))
    x = (strength * shared + own_x)[which] + generator.normal(size=which.size)
    y = (strength * shared + own_y)[which] + generator.normal(size=which.size)
    return x, y, which


def test_the_coefficients_are_scipys() -> None:
    x, y, which = clustered(0, 40, 5, 1.0)
    x = np.round(x)  # ties
    for found, expected in (
        (pearson(x, y, which), pearsonr(x, y)[0]),
        (spearman(x, y, which), spearmanr(x, y)[0]),
    ):
        assert found is not None and found.low is not None and found.high is not None
        assert found.value == pytest.approx(expected, rel=1e-12)
        assert found.low < found.value < found.high
    # Far from 0, where the difference of sums of squares would lose every digit.
    shifted = pearson(x + 1e9, y - 1e9, which)
    assert shifted is not None and shifted.value == pytest.approx(pearsonr(x, y)[0], rel=1e-4)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Shared variance 1 of 3 each: r = 1/3. Fisher's interval, of independent values, would be too short."""
    inside = 0
    for seed in range(100):
        x, y, which = clustered(seed, 60, 8, 1.0)
        found = pearson(x, y, which, draws=400)
        assert found is not None and found.low is not None and found.high is not None
        inside += found.low <= 1 / 3 <= found.high
    assert 0.87 <= inside / 100 <= 0.98


def test_what_has_no_coefficient_or_no_interval() -> None:
    x, y, which = clustered(1, 30, 4, 1.0)
    assert pearson(np.ones_like(x), y, which) is None and spearman(x, np.zeros_like(y), which) is None
    assert pearson([], [], []) is None
    alone = pearson(x, y, np.zeros_like(which))
    assert alone is not None and (alone.low, alone.high) == (None, None)
    rare = np.zeros_like(x)
    rare[5] = 1
    once = pearson(rare, y, which)
    assert once is not None and once.low is None
    with pytest.raises(ValueError, match="NaN"):
        pearson([1.0, float("nan")], [1.0, 2.0], [0, 1])


def test_equal_data_give_equal_intervals() -> None:
    x, y, which = clustered(2, 30, 4, 1.0)
    assert pearson(x, y, which) == pearson(x, y, which)
    # Which name a cluster has means nothing.
    assert pearson(x, y, [f"problem {one:03d}" for one in which]) == pearson(x, y, which)
