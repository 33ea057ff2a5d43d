"""Learning curves on a budget: straight lines between points, nothing beyond them."""

import numpy as np
import pytest
from scipy import stats

from rlvr_cli.stats.curves import band, cut, summarise_curve

X, Y = [0.0, 10.0, 20.0, 40.0], [0.0, 0.5, 0.9, 0.7]


def test_a_summary_by_hand() -> None:
    summary = summarise_curve(X, Y, level=0.7)
    assert (summary.final, summary.best, summary.best_at, summary.budget) == (0.7, 0.9, 20.0, 40.0)
    assert summary.area == pytest.approx((2.5 + 7.0 + 16.0) / 40)
    assert summary.reached == pytest.approx(15.0)
    assert summarise_curve(X, Y, level=0.95).reached is None
    assert summarise_curve(X, Y, level=-1.0).reached == 0.0
    assert summarise_curve(X, Y).reached is None


def test_a_budget_cuts_the_curve_between_points() -> None:
    at, height = cut(X, Y, 30.0)
    assert at.tolist() == [0.0, 10.0, 20.0, 30.0]
    assert height == pytest.approx([0.0, 0.5, 0.9, 0.8])
    summary = summarise_curve(X, Y, budget=15.0, level=0.8)
    assert (summary.final, summary.best) == pytest.approx((0.7, 0.7))
    assert (summary.best_at, summary.reached) == (15.0, None)
    assert summarise_curve(X, Y, budget=40.0) == summarise_curve(X, Y)
    assert cut(X, Y, 10.0)[0].tolist() == [0.0, 10.0]
    assert cut(X, Y, 0.0)[1].tolist() == [0.0]


def test_the_area_is_the_mean_height_on_any_spacing() -> None:
    x = np.sort(np.random.default_rng(0).random(2000)) * 3
    x[0], x[-1] = 0.0, 3.0
    assert summarise_curve(x, x**2).area == pytest.approx(3.0, rel=1e-4)
    assert summarise_curve(x * 1000, x**2).area == pytest.approx(3.0, rel=1e-4)
    assert summarise_curve([5.0], [0.4]).area == 0.4


def test_a_band_is_students_interval_at_each_point() -> None:
    rng = np.random.default_rng(1)
    curves = [(X, rng.random(4)) for _ in range(5)]
    found = band(curves, [0.0, 15.0])
    assert found.low is not None and found.high is not None
    for i, values in enumerate((np.array([y[0] for _, y in curves]), np.array([(y[1] + y[2]) / 2 for _, y in curves]))):
        interval = stats.ttest_1samp(values, 0.0).confidence_interval()
        assert (found.mean[i], found.low[i], found.high[i]) == pytest.approx(
            (values.mean(), interval.low, interval.high)
        )
    one = band(curves[:1], [0.0])
    assert (one.low, one.high, one.runs) == (None, None, 1)
    same = band([(X, Y), (X, Y)], X)
    assert same.low is not None and np.isnan(same.low).all() and same.mean == pytest.approx(Y)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([], [], "two lists of one length"),
        ([1.0, 2.0], [1.0], "two lists of one length"),
        ([[1.0]], [[1.0]], "two lists of one length"),
        ([1.0, 2.0], [1.0, np.nan], "NaN"),
        ([1.0, np.inf], [1.0, 2.0], "NaN or infinity"),
        ([1.0, 1.0], [1.0, 2.0], "must increase"),
        ([2.0, 1.0], [1.0, 2.0], "must increase"),
    ],
)
def test_what_is_no_curve_is_refused(x: list[float], y: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        summarise_curve(x, y)
    with pytest.raises(ValueError, match=message):
        band([(x, y)], [1.0])


def test_nothing_is_extrapolated() -> None:
    for budget in (-1.0, 41.0, float("nan")):
        with pytest.raises(ValueError, match="outside the curve, which goes from 0 to 40"):
            summarise_curve(X, Y, budget=budget)
    with pytest.raises(ValueError, match="a curve goes from 0 to 40"):
        band([(X, Y)], [50.0])
    with pytest.raises(ValueError, match="at least one curve"):
        band([], [1.0])
