"""Intervals hold the truth about 95 times in 100 when problems differ in difficulty."""

import numpy as np
import pytest

from rlvr_cli.stats.intervals import mean_interval, paired_interval, share_interval, student_quantile
from rlvr_cli.stats.passk import pass_at_k

REPEATS = 1200


def simulated_shares(seed: int, problems: int, n: int, k: int, a: float, b: float) -> tuple[float, list[np.ndarray]]:
    """The true pass@k for difficulties from Beta(a, b), and repeated evaluations of fresh problems."""
    rng = np.random.default_rng(seed)
    truth = 1 - float(np.mean((1 - rng.beta(a, b, 500_000)) ** k))
    table = np.array([pass_at_k(n, correct, k) for correct in range(n + 1)])
    return truth, [table[rng.binomial(n, rng.beta(a, b, problems))] for _ in range(REPEATS)]


@pytest.mark.parametrize(
    ("problems", "n", "k", "a", "b"),
    [(420, 32, 1, 0.5, 1.5), (30, 8, 1, 0.5, 1.5), (100, 32, 32, 1, 3)],
)
def test_share_interval_covers_the_truth(problems: int, n: int, k: int, a: float, b: float) -> None:
    truth, evaluations = simulated_shares(0, problems, n, k, a, b)
    estimates = [share_interval(values) for values in evaluations]
    covered = np.mean([e.low <= truth <= e.high for e in estimates if e.low is not None and e.high is not None])
    assert 0.925 <= covered <= 0.975


def test_near_one_the_share_interval_covers_where_the_t_interval_does_not() -> None:
    truth, evaluations = simulated_shares(1, 100, 32, 32, 2, 4)
    assert truth > 0.98

    def coverage(interval) -> float:  # type: ignore[no-untyped-def]
        ends = [(found.low, found.high) for found in map(interval, evaluations)]
        return float(np.mean([low is not None and low <= truth <= high for low, high in ends]))

    assert coverage(share_interval) > 0.91
    assert coverage(mean_interval) < 0.85


def test_paired_interval_covers_the_difference_and_is_shorter_than_an_unpaired_one() -> None:
    rng = np.random.default_rng(2)
    covered, paired_width, single_width = 0, 0.0, 0.0
    for _ in range(REPEATS):
        difficulty = rng.beta(0.5, 1.5, 100)
        before = rng.binomial(16, difficulty) / 16
        after = rng.binomial(16, np.minimum(1.0, difficulty * 0.5 + 0.5)) / 16
        estimate = paired_interval(before, after)
        truth = 0.5 - 0.5 * 0.25
        assert estimate.low is not None and estimate.high is not None
        covered += estimate.low <= truth <= estimate.high
        paired_width += estimate.high - estimate.low
        single = mean_interval(before)
        assert single.low is not None and single.high is not None
        single_width += single.high - single.low
    assert 0.93 <= covered / REPEATS <= 0.97
    assert paired_width < single_width


def test_share_interval_stays_inside_and_keeps_a_width_when_all_problems_agree() -> None:
    for value in (0.0, 1.0, 0.5):
        estimate = share_interval([value] * 50)
        assert estimate.low is not None and estimate.high is not None
        assert 0.0 <= estimate.low <= value <= estimate.high <= 1.0
        assert 0.05 < estimate.high - estimate.low < 0.3


def test_values_that_are_all_the_same_have_no_t_interval() -> None:
    """In floating point too: the mean of equal numbers need not be that number."""
    for values in ([0.95] * 3, [0.1] * 10, [0.1 + 0.2, 0.3, 0.3], [-1.0] * 16):
        assert mean_interval(values).low is None and mean_interval(values).high is None
    assert paired_interval([0.0] * 4, [1.0] * 4).low is None


def test_an_interval_is_cut_where_no_mean_can_be() -> None:
    reward = mean_interval([1.0, 1.0, 1.0, 0.1], (0.0, 1.0))
    assert reward.low is not None and 0.0 < reward.low < 0.2 and reward.high == 1.0
    difference = paired_interval([0.0] * 4, [1.0, 1.0, 1.0, 0.25], (0.0, 1.0))
    assert difference.high == 1.0 and paired_interval([1.0, 1.0, 1.0, 0.25], [0.0] * 4, (0.0, 1.0)).low == -1.0


@pytest.mark.parametrize(("seeds", "accuracy"), [(3, 0.6), (5, 0.6), (3, 0.95)])
def test_the_t_interval_over_seeds_covers_the_mean_of_runs_where_it_has_one(seeds: int, accuracy: float) -> None:
    """Final accuracies on the same 56 problems x 16 samples."""
    rng = np.random.default_rng(4)
    chances = np.clip(rng.normal(accuracy, 0.02, (4 * REPEATS, seeds)), 0.0, 1.0)
    values = rng.binomial(56 * 16, chances) / (56 * 16)
    found = [mean_interval(row, (0.0, 1.0)) for row in values]
    ends = [(one.low, one.high) for one in found if one.low is not None and one.high is not None]
    assert len(ends) > 0.99 * len(values)
    assert 0.94 <= np.mean([low <= accuracy <= high for low, high in ends]) <= 0.965


def test_student_quantile_matches_the_tables() -> None:
    for degrees, quantile in {1: 12.706, 2: 4.303, 5: 2.571, 10: 2.228, 30: 2.042, 419: 1.966}.items():
        assert student_quantile(degrees) == pytest.approx(quantile, abs=1e-3)


def test_what_cannot_be_estimated_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one problem"):
        mean_interval([])
    with pytest.raises(ValueError, match="between 0 and 1"):
        share_interval([0.2, 1.2])
    with pytest.raises(ValueError, match="pair"):
        paired_interval([0.1, 0.2], [0.3])
