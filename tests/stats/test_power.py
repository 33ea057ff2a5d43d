"""Predicted power is what simulation finds, and no number is given where no number would do."""

import math

import numpy as np
import pytest
from scipy import stats

from rlvr_cli.stats.clustered import (
    VarianceComponents,
    crossed_difference,
    p_value,
    two_way,
)
from rlvr_cli.stats.power import PlannedTest

TYPICAL = VarianceComponents(run=0.01**2, problem=0.1**2, residual=0.3**2)


def simulated_power(components: VarianceComponents, difference: float, seeds: int, problems: int) -> float:
    rng = np.random.default_rng(0)
    n = 1500
    data = difference + math.sqrt(components.run) * rng.normal(size=(n, seeds, 1))
    data = data + math.sqrt(components.problem) * rng.normal(size=(n, 1, problems))
    table = two_way(data + math.sqrt(components.residual) * rng.normal(size=(n, seeds, problems)))
    return float((p_value(table.mean, table.variance) < 0.05).mean())


@pytest.mark.parametrize(("seeds", "problems"), [(3, 100), (10, 50)])
@pytest.mark.parametrize("components", [TYPICAL, VarianceComponents(0.03**2, 0.1**2, 0.1**2)])
def test_the_detectable_difference_is_seen_in_four_of_five(
    components: VarianceComponents, seeds: int, problems: int
) -> None:
    difference = PlannedTest(components).detectable_difference(seeds, problems)
    assert PlannedTest(components).power_at(difference, seeds, problems) == pytest.approx(0.8, abs=1e-4)
    assert simulated_power(components, difference, seeds, problems) == pytest.approx(0.8, abs=0.035)
    assert simulated_power(components, difference / 2, seeds, problems) == pytest.approx(
        PlannedTest(components).power_at(difference / 2, seeds, problems), abs=0.035
    )


@pytest.mark.parametrize("seeds", [3])
def test_arms_that_share_no_seeds_have_up_to_twice_the_degrees_of_freedom(seeds: int) -> None:
    components = VarianceComponents(run=2 * 0.02**2, problem=0.1**2, residual=2 * 0.2**2)
    difference = PlannedTest(components, paired=False, power=0.7).detectable_difference(seeds, 100)
    rng = np.random.default_rng(2)
    hits = []
    for _ in range(500):
        a, b = (0.02 * rng.normal(size=(seeds, 1)) + 0.2 * rng.normal(size=(seeds, 100)) for _ in range(2))
        estimate = crossed_difference([a + difference + 0.1 * rng.normal(size=(1, 100))], [b], paired=False)
        assert estimate.p_value is not None
        hits.append(estimate.p_value < 0.05)
    assert np.mean(hits) == pytest.approx(0.7, abs=0.06)
    assert PlannedTest(components).power_at(difference, seeds, 100) < 0.65


def test_a_pair_of_more_seeds_and_problems_sees_what_neither_does_alone() -> None:
    test = PlannedTest(VarianceComponents(0.03**2, 0.3**2, 0.3**2))
    assert test.required_seeds(0.03, 56) is None and test.required_problems(0.03, 3) is None
    seeds, problems = test.required_sizes(0.03, 3, 56) or (0, 0)
    assert seeds > 3 and problems > 56
    assert test.power_at(0.03, seeds, problems) >= 0.8 > test.power_at(0.03, seeds, problems - 1)
    others = ((other, test.required_problems(0.03, other)) for other in range(4, 3 * seeds))
    least = min(other * wanted for other, wanted in others if wanted is not None)
    assert least <= seeds * problems < 1.1 * least


def test_without_spread_between_problems_it_is_the_power_of_students_test() -> None:
    components = VarianceComponents(0.02**2, 0.0, 0.2**2)
    for seeds in (2, 3, 8):
        scale = math.sqrt((0.02**2 + 0.2**2 / 100) / seeds)
        critical = stats.t.ppf(0.975, seeds - 1)
        exact = stats.nct.sf(critical, seeds - 1, 0.05 / scale) + stats.nct.cdf(-critical, seeds - 1, 0.05 / scale)
        assert PlannedTest(components).power_at(0.05, seeds, 100) == pytest.approx(exact, abs=2e-3)
        assert PlannedTest(components).power_at(-0.05, seeds, 100) == pytest.approx(
            PlannedTest(components).power_at(0.05, seeds, 100)
        )


def test_the_numbers_needed_are_the_least_that_do() -> None:
    seeds = PlannedTest(TYPICAL).required_seeds(0.02, 400)
    assert seeds is not None
    assert PlannedTest(TYPICAL).power_at(0.02, seeds, 400) >= 0.8 > PlannedTest(TYPICAL).power_at(0.02, seeds - 1, 400)
    problems = PlannedTest(TYPICAL).required_problems(0.02, 10)
    assert problems is not None
    assert (
        PlannedTest(TYPICAL).power_at(0.02, 10, problems) >= 0.8 > PlannedTest(TYPICAL).power_at(0.02, 10, problems - 1)
    )
    assert PlannedTest(TYPICAL, alpha=0.05 / 6).required_seeds(0.02, 400) > seeds  # type: ignore[operator]
    assert PlannedTest(TYPICAL).required_seeds(5.0, 400) == 2


def test_the_components_of_a_comparison_are_what_it_takes() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.random((5, 300)) < 0.5 for _ in range(2))
    components = crossed_difference([a], [b]).components
    assert components is not None
    assert components.residual == pytest.approx(0.5, rel=0.1)
    assert (
        PlannedTest(components).detectable_difference(5, 300)
        > PlannedTest(components).detectable_difference(10, 300)
        > 0
    )


def test_what_cannot_be_planned_is_refused() -> None:
    for difference, seeds, problems, alpha, message in (
        (0.0, 5, 100, 0.05, "finite and not 0"),
        (math.nan, 5, 100, 0.05, "finite and not 0"),
        (0.1, 1, 100, 0.05, "seeds and problems must be at least 2"),
        (0.1, 5, 1, 0.05, "at least 2; got 5 and 1"),
        (0.1, 5, 100, 0.0, "alpha"),
        (0.1, 5, 100, 0.9, "power must be between"),
    ):
        with pytest.raises(ValueError, match=message):
            PlannedTest(TYPICAL, alpha=alpha).power_at(difference, seeds, problems)
    with pytest.raises(ValueError, match="variances"):
        PlannedTest(VarianceComponents(math.nan, 0.0, 0.0))
    nothing = VarianceComponents(0.0, 0.0, 0.0)
    assert PlannedTest(nothing).detectable_difference(3, 10) == 0.0
    assert PlannedTest(nothing).required_seeds(0.01, 10) == PlannedTest(nothing).required_problems(0.01, 3) == 2
