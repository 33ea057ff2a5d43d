"""Averages over benchmarks: the papers' own averages from their own columns, and the interval's coverage."""

import random

import pytest

from rlvr_cli.evaluation.overview import compute_average, macro_interval
from rlvr_cli.store.evaluation import ProblemValues
from rlvr_cli.tasks.suites import SUITES, Average


def rows(metric: str, values: list[float], group: str = "") -> list[ProblemValues]:
    return [ProblemValues(f"{group}{i}", group, {metric: value}) for i, value in enumerate(values)]


def both(**values: float) -> list[ProblemValues]:
    return [
        ProblemValues(str(i), "", {name.replace("_", "@"): value for name, value in values.items()}) for i in (0, 1)
    ]


def test_ar_lopti_table_1() -> None:
    """Its first row: 27.64 18.38 63.00 22.21 30.00 5.00, average 27.71. AIME counts twice."""
    columns = {
        "olympiadbench": both(greedy=0.2764),
        "minerva": both(greedy=0.1838),
        "math500": both(greedy=0.63),
        "amc23": both(avg_16=0.2221),
        "aime24": both(avg_16=0.05, pass_16=0.30),
    }
    average = next(average for average in SUITES["ar_lopti"].averages if average.name == "mathematics")
    found = compute_average(average, columns, dict.fromkeys(columns, 16), dict.fromkeys(columns, 16))
    assert not isinstance(found, str)
    assert found.value == pytest.approx(0.2771, abs=6e-5)


def test_ar_lopti_figure_4_weighs_numbers_of_people_equally() -> None:
    """GRPO, 3B: 0.60 0.45 0.33 0.34 0.23, average 0.39; also where there are more puzzles of one number."""
    shares = {3: 60, 4: 45, 5: 33, 6: 34, 7: 23}
    puzzles = [
        row
        for number, right in shares.items()
        for row in rows("greedy", [1.0] * right + [0.0] * (100 - right), f"{number} people")
    ]
    average = SUITES["ar_lopti"].averages[0]
    puzzles += rows("greedy", [1.0] * 60 + [0.0] * 40, "3 people")
    found = compute_average(average, {"kk": puzzles}, {"kk": 0}, {"kk": 0})
    assert not isinstance(found, str)
    assert found.value == pytest.approx(0.39)


def test_acpo_table_2_and_dgpo_table_3() -> None:
    """Base model 26.20 13.32 41.48 18.02: 24.76; GRPO 33.2 27.7 79.5 77.6 26.1 46.3: 48.4."""
    for suite, samples, printed, mean in [
        ("acpo", 8, (0.2620, 0.1332, 0.4148, 0.1802), 0.2476),
        ("dgpo", 32, (0.332, 0.277, 0.795, 0.776, 0.261, 0.463), 0.484),
    ]:
        average = SUITES[suite].averages[0]
        names = [name for name, _ in average.figures]
        columns = {name: both(**{f"avg_{samples}": value}) for name, value in zip(names, printed, strict=True)}
        found = compute_average(average, columns, dict.fromkeys(names, samples), dict.fromkeys(names, samples))
        assert not isinstance(found, str)
        assert found.value == pytest.approx(mean, abs=6e-5)


def test_a_missing_figure_is_said() -> None:
    average = Average("x", (("aime24", "pass@16"),), "")
    seen = {"aime24": rows("avg@4", [0.5, 0.5])}
    assert compute_average(average, seen, {"aime24": 4}, {"aime24": 16}) == "aime24 was evaluated without pass@16"


def test_an_average_over_other_samples_is_not_the_figure_that_the_suite_names() -> None:
    average = Average("avg@32", (("aime24", "avg"),), "table 3")
    seen = {"aime24": rows("avg@2", [0.5, 0.5])}
    assert (
        compute_average(average, seen, {"aime24": 2}, {"aime24": 32}) == "aime24 was evaluated with 2 samples, not 32"
    )


def test_it_has_a_width_and_stays_inside_where_all_problems_agree() -> None:
    found = macro_interval([([0.0] * 30, 0.5), ([0.0] * 500, 0.5)])
    assert found.low == found.value == 0.0
    assert found.high is not None
    assert 0.0 < found.high < 0.12
    assert macro_interval([([1.0], 1.0)]).low is None


def test_one_benchmark_has_its_own_interval() -> None:
    from rlvr_cli.stats.intervals import share_interval

    values = [0.0, 0.25, 1.0, 0.5, 0.75]
    found, alone = macro_interval([(values, 1.0)]), share_interval(values)
    assert (found.value, found.low, found.high) == pytest.approx((alone.value, alone.low, alone.high))


def test_the_interval_covers_the_truth() -> None:
    """Three benchmarks of 30, 40 and 100 problems, of unlike difficulty: 95% of intervals hold the mean."""
    rng = random.Random(0)
    sizes, truths = (30, 40, 100), (0.05, 0.5, 0.9)
    truth = sum(truths) / 3
    inside = 0
    for _ in range(1500):
        drawn = [([float(rng.random() < p) for _ in range(n)], 1 / 3) for n, p in zip(sizes, truths, strict=True)]
        found = macro_interval(drawn)
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= truth <= found.high
    assert 0.93 < inside / 1500 < 0.985
