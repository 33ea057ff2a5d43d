"""Dealing whole runs again gives the exact p; Holm's correction is the closed test."""

import itertools
from math import comb

import numpy as np
import pytest
from scipy import stats

from benchmarks.statistics import KINDS, any_rejected, rejections, simulated
from rlvr_cli.stats.clustered import crossed_difference
from rlvr_cli.stats.permutation import holm, permutation_test

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("first", "second"), [(3, 3), (2, 4), (4, 3)])
def test_p_is_that_of_scipy_over_all_deals_of_the_runs(first: int, second: int) -> None:
    runs = RNG.random((first + second, 7)) + 0.2 * RNG.random((first + second, 1))
    runs[:first] += 0.3

    def statistic(a: np.ndarray, b: np.ndarray) -> float:
        estimate = crossed_difference([runs[a.astype(int)]], [runs[b.astype(int)]], paired=False)
        assert estimate.standard_error is not None
        return round(abs(estimate.value / estimate.standard_error), 9)

    indices = np.arange(first + second)
    reference = stats.permutation_test(
        (indices[:first], indices[first:]), statistic, n_resamples=np.inf, alternative="greater", vectorized=False
    )
    found = permutation_test(runs[:first], runs[first:])
    assert found is not None and found.exact
    assert found.permutations == comb(first + second, first)
    assert found.p_value == pytest.approx(reference.pvalue)


def test_a_random_sample_of_deals_is_near_all_of_them_and_the_same_for_the_same_seed() -> None:
    a, b = RNG.random((6, 20)) + 0.05, RNG.random((6, 20))
    exact, sampled = permutation_test(a, b), permutation_test(a, b, draws=700)
    assert exact is not None and sampled is not None
    assert exact.exact and not sampled.exact and sampled.permutations == 701
    assert sampled.p_value == pytest.approx(exact.p_value, abs=0.06)
    assert permutation_test(a, b, draws=700) == sampled != permutation_test(a, b, draws=700, seed=1)


def test_few_runs_cannot_give_a_small_p_however_far_apart_they_are() -> None:
    for seeds, smallest in ((2, 1 / 3), (3, 0.1), (4, 2 / 70), (5, 2 / 252)):
        noise = RNG.normal(0, 0.01, (2, seeds, 20))
        found = permutation_test(noise[0] + 1.0, noise[1])
        assert found is not None
        assert found.smallest == pytest.approx(smallest)
        assert found.p_value == pytest.approx(smallest)
    constant = permutation_test(np.ones((3, 4)), np.zeros((3, 4)))
    assert constant is not None and constant.p_value == pytest.approx(0.1)


def test_equal_arms_and_too_few_runs() -> None:
    table = RNG.random((3, 5))
    for arms in ((table, table), (np.ones((3, 5)), np.ones((3, 5)))):
        found = permutation_test(*arms)
        assert found is not None and found.p_value == 1.0
    assert permutation_test(table[:1], table) is None
    assert permutation_test(table[:, :1], table[:, :1]) is None
    with pytest.raises(ValueError, match="NaN"):
        permutation_test(table * np.nan, table)
    with pytest.raises(ValueError, match="draws"):
        permutation_test(table, table, draws=0)


def test_runs_are_the_unit_so_the_spread_between_them_is_no_difference_between_methods() -> None:
    rates = rejections(KINDS[0], 4, 0.03, 0.0, 200)
    assert rates["problems"] > 0.2
    assert rates["runs"] < 0.085
    assert rates["crossed"] < 0.085


def test_holm_is_the_closed_test_of_bonferroni() -> None:
    for size in (1, 2, 5):
        p = list(RNG.random(size) ** 3)
        subsets = [s for n in range(1, size + 1) for s in itertools.combinations(range(size), n)]
        closed = [
            max(min(1.0, len(subset) * min(p[j] for j in subset)) for subset in subsets if i in subset)
            for i in range(size)
        ]
        assert holm(p) == pytest.approx(closed)
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.2, 0.2]) == [0.4, 0.4]


@pytest.mark.parametrize("bad", [[0.1, float("nan")], [-0.1], [1.1]])
def test_what_is_no_p_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm(bad)


def test_a_family_of_equal_methods_is_left_alone() -> None:
    for kind in KINDS:
        families = [
            rejected
            for arms in simulated(kind, 3, 50, 0.02, (0.0,) * 7, 200)
            for rejected in any_rejected(arms, [(0, i) for i in range(1, 7)])
        ]
        assert len(families) == 200
        assert np.mean(families) <= 0.075, kind.name
