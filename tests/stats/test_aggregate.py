"""Summaries over tasks equal SciPy's, and their intervals come from resampling runs within tasks."""

import itertools

import numpy as np
import pytest
from scipy import stats

from rlvr_cli.stats.over_tasks import (
    interquartile_mean,
    iqm_interval,
    performance_profile,
    probability_of_improvement,
)

RNG = np.random.default_rng(0)
SCORES = RNG.random((5, 7))


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 3), (5, 7)])
def test_the_interquartile_mean_is_scipys_trimmed_mean(shape: tuple[int, int]) -> None:
    scores = RNG.random(shape)
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=None))


def test_one_wild_run_does_not_move_the_interquartile_mean() -> None:
    wild = SCORES.copy()
    wild[0, 0] = 1e6
    assert interquartile_mean(wild) < 1.0 < wild.mean()


def test_the_probability_of_improvement_is_mann_and_whitneys() -> None:
    a, b = RNG.integers(0, 4, (4, 6)) / 4, RNG.integers(0, 4, (3, 6)) / 4
    expected = np.mean([stats.mannwhitneyu(a[:, t], b[:, t]).statistic / 12 for t in range(6)])
    assert probability_of_improvement(a, b).value == pytest.approx(expected)
    assert probability_of_improvement(a, a).value == pytest.approx(0.5)
    better = probability_of_improvement(a + 2, b)
    assert (better.value, better.low, better.high, better.runs, better.tasks) == (1.0, None, None, 3, 6)


def test_the_bootstrap_is_stratified_every_resample_of_runs_in_every_task_alike_likely() -> None:
    scores = np.array([[0.0, 10.0], [1.0, 30.0]])
    every = [
        np.mean([scores[i, 0], scores[j, 0], scores[k, 1], scores[m, 1]])
        for i, j, k, m in itertools.product(range(2), repeat=4)
    ]
    profile = performance_profile(scores, [15.0], draws=4000)
    assert profile.values.tolist() == [0.25]
    assert (profile.low.tolist(), profile.high.tolist()) == ([0.0], [0.5])
    found = iqm_interval(scores, draws=4000)
    # The middle half of four scores, two of each task, is one score of each.
    assert found.low >= min(every) and found.high <= max(every)
    assert found.value == pytest.approx((1.0 + 10.0) / 2)


def test_with_one_task_it_is_the_ordinary_percentile_bootstrap() -> None:
    scores = RNG.normal(size=(30, 1))
    reference = stats.bootstrap(
        (scores[:, 0],), lambda x, axis: stats.trim_mean(x, 0.25, axis=axis), method="percentile", rng=1
    ).confidence_interval
    found = iqm_interval(scores, draws=9999)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=0.02)


def test_a_profile_is_the_share_above_each_threshold() -> None:
    thresholds = [-1.0, 0.25, 0.5, 2.0]
    profile = performance_profile(SCORES, thresholds)
    expected = [np.mean([np.mean([x > level for x in task]) for task in SCORES.T]) for level in thresholds]
    assert profile.values == pytest.approx(expected)
    assert np.all(profile.low <= profile.values) and np.all(profile.values <= profile.high)
    assert np.all(np.diff(profile.values) <= 0)


def test_intervals_come_from_named_streams() -> None:
    assert iqm_interval(SCORES, seed=3) == iqm_interval(SCORES, seed=3)
    assert iqm_interval(SCORES, seed=3) != iqm_interval(SCORES, seed=4)
    assert iqm_interval(SCORES).as_json()["tasks"] == 7


def test_the_interval_covers_with_twenty_runs() -> None:
    centres = np.linspace(0.2, 0.8, 6)
    rng = np.random.default_rng(1)
    truth = np.mean([interquartile_mean(centres + 0.05 * rng.normal(size=(20, 6))) for _ in range(4000)])
    hits = 0
    for i in range(400):
        found = iqm_interval(centres + 0.05 * rng.normal(size=(20, 6)), seed=i, draws=300)
        assert found.low is not None and found.high is not None
        hits += found.low <= truth <= found.high
    assert 0.90 <= hits / 400 <= 0.98


def test_hostile_scores() -> None:
    for bad, message in (([[np.nan]], "NaN"), (np.empty((0, 3)), "0 runs x 3 tasks"), ([1.0], "two dimensions")):
        with pytest.raises(ValueError, match=message):
            iqm_interval(bad)
    with pytest.raises(ValueError, match="tasks in one arm"):
        probability_of_improvement(SCORES, SCORES[:, :3])
    for thresholds in ([], [np.nan], 0.5):
        with pytest.raises(ValueError, match="thresholds"):
            performance_profile(SCORES, thresholds)
    with pytest.raises(ValueError, match="draws"):
        iqm_interval(SCORES, draws=0)
    constant = iqm_interval(np.full((3, 2), 0.4))
    assert (constant.value, constant.low, constant.high) == (pytest.approx(0.4), None, None)
    one = iqm_interval([[0.7, 0.8]])
    assert (one.low, one.high, one.runs) == (None, None, 1)


def test_rows_that_are_one_run_are_drawn_as_wholes() -> None:
    """A run whose luck moves all tasks alike is one piece of evidence, however many tasks there are."""
    runs = np.random.default_rng(0).normal(size=(8, 1))
    column, table = iqm_interval(runs, together=True, draws=4000), np.tile(runs, 6)
    rows, cells = (iqm_interval(table, together=together, draws=4000) for together in (True, False))
    assert column.low is not None and rows.low is not None and rows.high is not None
    assert cells.low is not None and cells.high is not None
    assert rows.low == pytest.approx(column.low, abs=0.05)
    assert cells.high - cells.low < (rows.high - rows.low) * 0.6
