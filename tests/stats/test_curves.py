"""Learning curves on a budget: straight lines between points, nothing beyond them."""

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import stats

from rlvr_cli.stats.curves import Curve, mean_band


def curve_of(x: ArrayLike, y: ArrayLike) -> Curve:
    return Curve(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))


X, Y = [0.0, 10.0, 20.0, 40.0], [0.0, 0.5, 0.9, 0.7]


def test_a_curve_by_hand() -> None:
    curve = curve_of(X, Y)
    assert curve.at(15.0) == pytest.approx(0.7) and curve.at([5.0, 30.0]) == pytest.approx([0.25, 0.8])
    assert curve.area() == pytest.approx((2.5 + 7.0 + 16.0) / 40)
    assert [curve.first_reaching(level) for level in (0.95, -1.0)] == [None, 0.0]
    assert curve.first_reaching(0.7) == pytest.approx(15.0)


def test_a_part_has_the_points_between_its_ends() -> None:
    part = curve_of(X, Y).between(5.0, 30.0)
    assert part.x.tolist() == [5.0, 10.0, 20.0, 30.0]
    assert part.y == pytest.approx([0.25, 0.5, 0.9, 0.8])
    early = curve_of(X, Y).between(0.0, 15.0)
    assert early.first_reaching(0.8) is None
    assert curve_of(X, Y).between(10.0, 10.0).area() == 0.5


def test_each_problem_has_a_curve_of_its_own() -> None:
    both = curve_of(X, np.array([Y, Y[::-1]]).T)
    assert both.at(15.0) == pytest.approx([0.7, 0.7]) and both.at([0.0, 15.0]).shape == (2, 2)
    assert both.area() == pytest.approx([curve_of(X, column).area() for column in (Y, Y[::-1])])
    assert both.first_reaching(0.7) == 10.0


def test_the_area_is_the_mean_height_on_any_spacing() -> None:
    x = np.sort(np.random.default_rng(0).random(2000)) * 3
    x[0], x[-1] = 0.0, 3.0
    assert curve_of(x, x**2).area() == pytest.approx(3.0, rel=1e-4)
    assert curve_of(x * 1000, x**2).area() == pytest.approx(3.0, rel=1e-4)
    assert curve_of([5.0], [0.4]).area() == 0.4


def test_a_band_is_students_interval_at_each_point() -> None:
    rng = np.random.default_rng(1)
    heights = rng.random((5, 4))
    mean, low, high = mean_band([curve_of(X, row) for row in heights], [0.0, 15.0])
    for i, values in enumerate((heights[:, 0], (heights[:, 1] + heights[:, 2]) / 2)):
        interval = stats.ttest_1samp(values, 0.0).confidence_interval()
        assert (mean[i], low[i], high[i]) == pytest.approx((values.mean(), interval.low, interval.high))
    for few in ([curve_of(X, Y)], [curve_of(X, Y)] * 2):
        mean, low, high = mean_band(few, X)
        assert mean == pytest.approx(Y) and np.isnan(low).all() and np.isnan(high).all()


def test_what_is_no_curve_is_refused_and_nothing_is_extrapolated() -> None:
    for x, y, message in (
        ([], [], "equal, non-zero lengths"),
        ([1.0, 2.0], [1.0], "equal, non-zero lengths"),
        ([1.0, 2.0], [1.0, np.nan], "NaN"),
        ([1.0, np.inf], [1.0, 2.0], "NaN or infinity"),
        ([1.0, 1.0], [1.0, 2.0], "strictly increasing"),
    ):
        with pytest.raises(ValueError, match=message):
            curve_of(x, y)
    for outside in (-1.0, 41.0, float("nan")):
        with pytest.raises(ValueError, match="outside the curve, from 0 to 40"):
            curve_of(X, Y).at(outside)
    with pytest.raises(ValueError, match="outside the curve"):
        mean_band([curve_of(X, Y)], [50.0])
    with pytest.raises(ValueError, match="at least one curve"):
        mean_band([], [1.0])
