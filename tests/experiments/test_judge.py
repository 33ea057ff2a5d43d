"""What a few seeds decide, and what they do not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from experiments.claims.claims import Rule
from experiments.claims.judge import agreement, judge, seeds_to_decide, wrong_by_chance

ABOVE, BELOW, WITHIN = Rule(above=0.0), Rule(below=0.0), Rule(within=(1.5, 2.5))


def test_the_rule() -> None:
    for values, rule, verdict in [
        ([1.0, 1.1, 0.9], ABOVE, "holds"),
        ([-1.0, -1.1, -0.9], ABOVE, "does not hold"),
        ([1.0, -1.0, 0.5], ABOVE, "undecided"),
        ([-1.0, -1.1, -0.9], BELOW, "holds"),
        ([1.0, 1.1, 0.9], BELOW, "does not hold"),
        ([1.0, -1.0, 0.5], BELOW, "undecided"),
        ([2.0, 2.1, 1.9], WITHIN, "holds"),
        ([3.0, 3.1, 2.9], WITHIN, "does not hold"),
        ([2.4, 2.6, 2.5], WITHIN, "undecided"),
        # Without any spread the interval is a point. On a threshold it is not beyond it; it is within two.
        ([0.0, 0.0, 0.0], ABOVE, "does not hold"),
        ([0.0, 0.0, 0.0], BELOW, "does not hold"),
        ([0.1, 0.1], ABOVE, "holds"),
        ([2.5, 2.5], WITHIN, "holds"),
        ([2.6, 2.6], WITHIN, "does not hold"),
        # One seed of chance shows no spread, and decides nothing.
        ([5.0], ABOVE, "undecided"),
    ]:
        assert judge(values, rule).verdict == verdict, (values, rule, verdict)


def test_the_interval_is_students() -> None:
    values = [0.3, 0.9, 0.5, 0.1, 0.7]
    found = judge(values, ABOVE)
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, low, high))


def test_an_exact_number_needs_no_second() -> None:
    found = judge([2.0], WITHIN, exact=True)
    assert (found.verdict, found.low, found.high) == ("holds", 2.0, 2.0)


@pytest.mark.parametrize(("values", "rule"), [([0.2, -0.5, 0.9, 0.4], ABOVE), ([2.4, 2.0, 2.9, 2.3], WITHIN)])
def test_the_seeds_that_it_takes(values: list[float], rule: Rule) -> None:
    """So many seeds of the same mean and spread decide it; one less does not."""
    needed = seeds_to_decide(values, rule)
    assert needed is not None and judge(values, rule).needed == needed
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))

    def verdict(n: int) -> str:
        shape = np.tile([-1.0, 1.0], n)[:n] - np.tile([-1.0, 1.0], n)[:n].mean()
        return judge(list(mean + shape * spread / shape.std(ddof=1)), rule).verdict

    assert verdict(needed) != "undecided" and verdict(needed - 1) == "undecided"


def test_nothing_that_is_no_number() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            judge([1.0, bad], ABOVE)


def test_wrong_by_chance_is_what_intervals_do() -> None:
    """Truth on the threshold is decided, wrongly, at most as often as is said."""
    draws = np.random.default_rng(0).normal(size=(2000, 5))
    decided = sum(judge(list(row), ABOVE).verdict != "undecided" for row in draws)
    assert abs(decided - wrong_by_chance(2000)[1]) < 30


def test_a_second_set() -> None:
    assert agreement("holds", "holds") == "agrees"
    assert agreement("holds", "does not hold") == "contradicts"
    assert agreement("does not hold", "undecided") == "undecided there"
    assert agreement("undecided", "holds") is None and agreement("holds", None) is None
