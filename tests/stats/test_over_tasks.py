"""The mean over tasks: of one task what a table gives, and right where runs answer all tasks or each its own."""

from __future__ import annotations

import numpy as np
import pytest

from rlvr_cli.stats.clustered import crossed_interval, paired_crossed_interval, unpaired_crossed_interval
from rlvr_cli.stats.over_tasks import paired_tasks_interval, tasks_interval, unpaired_tasks_interval

RNG = np.random.default_rng(0)
A, B, OTHER = RNG.random((4, 30)), RNG.random((4, 30)), RNG.random((6, 30))


def assert_same(found: object, expected: object) -> None:
    for name in ("value", "low", "high", "standard_error", "p_value", "seeds", "problems"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name)), name


@pytest.mark.parametrize("together", [False, True])
def test_one_task_is_its_table(together: bool) -> None:
    assert_same(tasks_interval([A], together=together), crossed_interval(A))
    assert_same(paired_tasks_interval([A], [B], together=together), paired_crossed_interval(A, B))
    assert_same(unpaired_tasks_interval([A], [OTHER], together=together), unpaired_crossed_interval(A, OTHER))
    assert_same(tasks_interval([A[:1]], together=together), crossed_interval(A[:1]))
    assert_same(unpaired_tasks_interval([A[:1]], [B], together=together), unpaired_crossed_interval(A[:1], B))


def test_tasks_weigh_the_same_whatever_their_numbers_of_problems() -> None:
    few, many = RNG.random((3, 5)), RNG.random((3, 500))
    found = tasks_interval([few, many])
    assert found.value == pytest.approx((few.mean() + many.mean()) / 2)
    assert (found.seeds, found.problems) == (3, 505)
    assert tasks_interval([A, A]).standard_error == pytest.approx(crossed_interval(A).standard_error / 2**0.5)  # type: ignore[operator]


def coverage(together: bool, luck_is_shared: bool, tables: int = 600) -> float:
    """Of 3 runs on tasks of 40, 80 and 120 problems, whose luck on one task tells or does not tell that on others."""
    rng, hits = np.random.default_rng(1), 0
    for _ in range(tables):
        shared = rng.normal(size=(3, 1))
        tasks = [
            0.03 * (shared if luck_is_shared else rng.normal(size=(3, 1)))
            + 0.1 * rng.normal(size=(1, problems))
            + 0.2 * rng.normal(size=(3, problems))
            for problems in (40, 80, 120)
        ]
        found = tasks_interval(tasks, together=together)
        hits += found.low is not None and found.high is not None and found.low <= 0 <= found.high
    return hits / tables


def test_coverage_and_what_it_costs_to_take_one_run_for_three() -> None:
    assert 0.93 <= coverage(together=True, luck_is_shared=True) <= 0.975
    assert 0.93 <= coverage(together=False, luck_is_shared=False) <= 0.975
    assert coverage(together=False, luck_is_shared=True) < 0.92


def test_what_is_refused() -> None:
    for tables, together, message in (
        ([], False, "no task"),
        ([A, A[:, :1]], False, "two problems in every task"),
        ([A, A[:3]], True, "as many in each"),
        ([A, [[np.nan, 1.0]]], False, "NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            tasks_interval(tables, together=together)
    constant = tasks_interval([np.full((3, 4), 0.5), np.full((3, 6), 0.7)])
    assert constant.low is None and constant.value == pytest.approx(0.6)
