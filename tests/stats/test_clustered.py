"""Intervals over seeds x problems hold the truth when both are drawn again, and say when they cannot."""

import itertools

import numpy as np
import pytest
from scipy import stats

from benchmarks.statistics import KINDS, setting_coverage
from rlvr_cli.stats.clustered import (
    crossed_difference,
    crossed_interval,
    half_width,
    p_value,
    two_way,
)
from rlvr_cli.stats.scores import Outcomes, count_outcomes

RNG = np.random.default_rng(0)
TABLE = RNG.random((4, 6)) + RNG.normal(0, 0.3, (4, 1)) + RNG.normal(0, 0.3, 6)


@pytest.mark.parametrize(("seeds", "problems", "run_sd"), [(3, 50, 0.03), (10, 50, 0.0)])
def test_the_default_covers_the_true_difference(seeds: int, problems: int, run_sd: float) -> None:
    for kind in KINDS[:2]:
        assert 0.93 <= setting_coverage(kind, seeds, problems, run_sd, 1000)["default"] <= 0.985, kind.name


def test_problems_alone_miss_the_spread_between_runs() -> None:
    shares = setting_coverage(KINDS[0], 3, 200, 0.03, 600, bootstrapped=200)
    assert shares["problems only"] < 0.75
    assert shares["pigeonhole"] < 0.92
    assert shares["Welch"] < shares["default"]


def test_the_mean_squares_are_those_of_the_sums_written_out() -> None:
    seeds, problems = TABLE.shape
    grand = sum(TABLE.flat) / TABLE.size
    rows, columns = [sum(row) / problems for row in TABLE], [sum(column) / seeds for column in TABLE.T]
    rest = sum(
        (TABLE[s, p] - rows[s] - columns[p] + grand) ** 2 for s, p in itertools.product(range(seeds), range(problems))
    )
    table = two_way(TABLE)
    assert table.mean == pytest.approx(grand)
    assert table.runs == pytest.approx(problems * sum((r - grand) ** 2 for r in rows) / (seeds - 1))
    assert table.problems == pytest.approx(seeds * sum((c - grand) ** 2 for c in columns) / (problems - 1))
    assert table.residual == pytest.approx(rest / ((seeds - 1) * (problems - 1)))


def test_the_parts_are_unbiased_and_the_interval_is_made_of_them() -> None:
    rng = np.random.default_rng(1)
    data = 0.02 * rng.normal(size=(4000, 4, 1)) + 0.1 * rng.normal(size=(4000, 1, 30)) + rng.normal(
        0, 0.2, (4000, 4, 30)
    )  # fmt: skip
    table = two_way(data)
    assert (table.runs - table.residual).mean() / 30 == pytest.approx(0.02**2, rel=0.1)
    assert (table.problems - table.residual).mean() / 4 == pytest.approx(0.1**2, rel=0.05)
    assert table.residual.mean() == pytest.approx(0.2**2, rel=0.02)
    assert table.variance.total.mean() == pytest.approx(table.mean.var(), rel=0.1)

    a, b, rest = (float(square) for square in (two_way(TABLE).runs, two_way(TABLE).problems, two_way(TABLE).residual))
    run, problem = a / 24, (b - rest) / 24
    half = np.sqrt(stats.t.ppf(0.975, 3) ** 2 * run + stats.t.ppf(0.975, 5) ** 2 * problem)
    found = crossed_interval(TABLE)
    assert found.standard_error == pytest.approx(np.sqrt(run + problem))
    assert found.high == pytest.approx(found.value + half)
    assert found.low == pytest.approx(2 * found.value - found.high)


def test_one_seed_is_students_interval_over_problems_and_says_that_runs_are_not_in_it() -> None:
    values = TABLE[0] - 0.5
    for table, estimate in ((values, crossed_interval(values[None])), (values, crossed_interval(values[:, None]))):
        student = stats.ttest_1samp(table, 0.0)
        interval = student.confidence_interval()
        assert (estimate.low, estimate.high) == pytest.approx((interval.low, interval.high))
        assert estimate.p_value == pytest.approx(student.pvalue)
        assert estimate.components is None
    assert not crossed_interval(values[None]).spread_of_runs
    assert not crossed_interval(values[:, None]).spread_of_problems
    assert crossed_interval(TABLE).as_json()["spread_of_runs"] is True


def test_unpaired_arms_of_one_problem_are_welchs_test() -> None:
    a, b = RNG.random((3, 1)), RNG.random((7, 1)) + 0.5
    welch = stats.ttest_ind(a[:, 0], b[:, 0], equal_var=False)
    estimate = crossed_difference([a], [b], paired=False)
    assert estimate.p_value == pytest.approx(welch.pvalue)
    assert (estimate.low, estimate.high) == pytest.approx(tuple(welch.confidence_interval()))


def test_pairing_removes_what_the_arms_share() -> None:
    shared = RNG.normal(0, 0.1, (5, 1)) + RNG.normal(0, 0.3, (1, 100))
    a, b = (shared + shift + RNG.normal(0, 0.1, (5, 100)) for shift in (0.02, 0.0))
    paired, apart = crossed_difference([a], [b]), crossed_difference([a], [b], paired=False)
    assert paired.value == pytest.approx(apart.value)
    assert paired.standard_error is not None and apart.standard_error is not None
    assert paired.standard_error < apart.standard_error / 3
    assert crossed_difference([b], [a]).p_value == pytest.approx(paired.p_value)


def test_p_is_the_level_at_which_the_interval_reaches_zero() -> None:
    tables = np.random.default_rng(2).normal(0.02, 0.1, (100, 3, 20))
    table = two_way(tables)
    p = p_value(table.mean, table.variance)
    for i in range(100):
        one = two_way(tables[i])
        assert half_width(one.variance, p[i]) == pytest.approx(abs(float(one.mean)), rel=1e-6)
        estimate = crossed_interval(tables[i])
        assert estimate.low is not None and estimate.high is not None and estimate.p_value == pytest.approx(p[i])
        assert (p[i] < 0.05) == (estimate.low > 0 or estimate.high < 0)
    assert 0 < sum(p < 0.05) < 100


def test_values_without_spread_have_no_interval() -> None:
    constant = crossed_interval(np.full((3, 4), 0.1))
    assert (constant.low, constant.high, constant.p_value) == (None, None, None)
    assert crossed_interval([[0.3]]).standard_error is None
    for arm in (TABLE, TABLE[:1], TABLE[:, :1]):
        for equal in (crossed_difference([arm], [arm]), crossed_interval(arm - arm)):
            assert (equal.value, equal.low, equal.p_value) == (0.0, None, 1.0)
    assert crossed_difference([np.ones((3, 4))], [np.ones((2, 4))], paired=False).p_value == 1.0
    assert crossed_difference([TABLE + 0.1], [TABLE]).p_value is None
    same_problems = crossed_interval(np.tile(TABLE[:, :1], 5))
    assert same_problems.components is not None and same_problems.components.problem < 1e-20
    assert same_problems.high == pytest.approx(
        same_problems.value + stats.t.ppf(0.975, 3) * (same_problems.standard_error or 0.0)
    )


def test_what_is_no_table_of_scores_is_refused() -> None:
    for values, message in (
        ([[0.1, float("nan")]], "1 of 2 scores are NaN"),
        ([[0.1, float("inf")]], "infinite"),
        ([0.1, 0.2], "two dimensions"),
        (np.empty((3, 0)), "must not be empty; got 3 seeds x 0 problems"),
        ([[0.1], [0.1, 0.2]], "must be numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            crossed_interval(values)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="same seeds; got 4 and 3"):
        crossed_difference([TABLE], [TABLE[:3]])
    for paired in (True, False):
        with pytest.raises(ValueError, match="same problems; got 6 and 5"):
            crossed_difference([TABLE], [TABLE[:, :5]], paired=paired)
    with pytest.raises(ValueError, match="same problems; got 6 and 5"):
        count_outcomes(TABLE, TABLE[:, :5])


def test_wins_ties_and_losses_are_of_the_means_over_seeds() -> None:
    a, b = np.array([[0.1, 1.0, 0.5], [0.3, 0.0, 0.5]]), np.array([[0.3, 0.4, 0.6], [0.1, 0.5, 0.6], [0.2, 0.3, 0.6]])
    assert count_outcomes(a, b) == Outcomes(wins=1, ties=1, losses=1)
    assert count_outcomes(a, a) == Outcomes(wins=0, ties=3, losses=0)


def test_run_means_that_agree_to_the_last_digit_do_not_make_a_mean_certain() -> None:
    """Counts of few problems tie by chance; taken at their word, a tie of two runs would be as good as any proof."""
    tied = np.array([[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0]])
    table = two_way(tied)
    assert table.runs == pytest.approx(0.0)
    found = crossed_interval(tied)
    assert found.standard_error is not None and found.p_value is not None
    assert found.standard_error**2 >= table.residual / 16 * (1 - 1e-9)
    assert found.p_value > 0.05


def test_tasks_weigh_the_same_whatever_their_numbers_of_problems() -> None:
    few, many = RNG.random((3, 5)), RNG.random((3, 500))
    estimate, table = crossed_interval(few, many), RNG.random((4, 30))
    assert estimate.value == pytest.approx((few.mean() + many.mean()) / 2)
    assert (estimate.seeds, estimate.problems) == (3, 505)
    error = crossed_interval(table).standard_error
    assert error is not None and crossed_interval(table, table).standard_error == pytest.approx(error / 2**0.5)
    # Runs that answer both move them together.
    rows = 2**0.5 * float(two_way(table).variance.runs.variance) ** 0.5
    together = crossed_interval(table, table, together=True).standard_error
    assert together is not None and together**2 - error**2 / 2 == pytest.approx(rows**2 / 4)


def coverage_over_tasks(*, together: bool, luck_is_shared: bool, tables: int = 250) -> float:
    """Of 3 runs on tasks of 40, 80 and 120 problems, whose luck on one task is or is not that on others."""
    rng, hits = np.random.default_rng(1), 0
    for _ in range(tables):
        shared = rng.normal(size=(3, 1))
        tasks = [
            0.03 * (shared if luck_is_shared else rng.normal(size=(3, 1)))
            + 0.1 * rng.normal(size=(1, problems))
            + 0.2 * rng.normal(size=(3, problems))
            for problems in (40, 80, 120)
        ]
        estimate = crossed_interval(*tasks, together=together)
        hits += estimate.low is not None and estimate.high is not None and estimate.low <= 0 <= estimate.high
    return hits / tables


def test_coverage_over_tasks_and_what_it_costs_to_take_one_run_for_three() -> None:
    assert 0.92 <= coverage_over_tasks(together=True, luck_is_shared=True) <= 0.975
    assert 0.92 <= coverage_over_tasks(together=False, luck_is_shared=False) <= 0.975
    assert coverage_over_tasks(together=False, luck_is_shared=True) < 0.92


@pytest.mark.parametrize("seed", [4, 11])
def test_the_difference_over_tasks_of_its_parts_written_out(seed: int) -> None:
    """Arms that share no seeds: sums over tasks and arms with the degrees of freedom of Satterthwaite."""
    rng = np.random.default_rng(seed)
    a, b = ([rng.random((seeds, problems)) for problems in (6, 9)] for seeds in (3, 4))
    runs = [(float(two_way(table).runs) / table.size / 4, len(table) - 1) for table in (*a, *b)]
    problems = []
    for first, second in zip(a, b, strict=True):
        rest = sum(float(two_way(table).residual) / table.size for table in (first, second))
        spread = (first.mean(0) - second.mean(0)).var(ddof=1) / first.shape[1]
        problems.append((max(spread - rest, 0.0) / 4, first.shape[1] - 1))
    half = 0.0
    for part in (runs, problems):
        total = sum(variance for variance, _ in part)
        degrees = total**2 / sum(variance**2 / freedom for variance, freedom in part)
        half += stats.t.ppf(0.975, degrees) ** 2 * total
    estimate = crossed_difference(a, b, paired=False)
    assert estimate.value == pytest.approx(np.mean([x.mean() - y.mean() for x, y in zip(a, b, strict=True)]))
    assert estimate.high == pytest.approx(estimate.value + half**0.5)


def test_tasks_that_are_refused() -> None:
    a = RNG.random((4, 30))
    for tables, together, message in (
        ([], False, "must not be empty"),
        ([a, a[:, :1]], False, "at least two problems"),
        ([a, a[:3]], True, "equal numbers of runs"),
        ([a, [[np.nan, 1.0]]], False, "NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            crossed_interval(*tables, together=together)
    constant = crossed_interval(np.full((3, 4), 0.5), np.full((3, 6), 0.7))
    assert constant.low is None and constant.value == pytest.approx(0.6)
