"""Learning curves up to a common budget, in four numbers each: final, best, area, and when a level is reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlvr_cli.compare.inputs import TaskInputs
from rlvr_cli.compare.scores import RunCurve, arm_mean, cut, of_methods
from rlvr_cli.stats.clustered import CrossedEstimate, paired_crossed_interval, unpaired_crossed_interval
from rlvr_cli.stats.curves import summarise_curve
from rlvr_cli.stats.intervals import of_difference

SUMMARIES = ("final", "best", "area")


@dataclass(frozen=True)
class CurveRow:
    """One arm's curves.

    Attributes:
        values, differences: of `final` (at the common budget), `best` (at each run's best evaluation) and `area` (the
            mean height of the curve); differences to the baseline, None for the baseline itself.
        level: of the metric. reached: the budget at which each run first had it, in the order of the runs; None for a
            run that did not.
    """

    arm: str
    values: dict[str, CrossedEstimate]
    differences: dict[str, CrossedEstimate] | None
    level: float
    reached: tuple[float | None, ...]


def curve_rows(inputs: TaskInputs, order: Sequence[str]) -> tuple[CurveRow, ...]:
    """The rows of a matched comparison, in the ``order`` given."""
    start, end = inputs.by_run.start, inputs.by_run.end
    curves = inputs.curves()
    tables = {name: _tables(curves[name], start, end) for name in order}
    interval = paired_crossed_interval if inputs.paired else unpaired_crossed_interval
    bounds, change = inputs.by_run.bounds, of_difference(inputs.by_run.bounds)
    base, wanted = tables[inputs.baseline], inputs.request.level
    level = float(base["final"].mean()) if wanted is None else wanted
    return tuple(
        CurveRow(
            arm=name,
            values={one: arm_mean(tables[name][one], bounds) for one in SUMMARIES},
            differences=None
            if name == inputs.baseline
            else {one: cut(of_methods(interval(tables[name][one], base[one])), change) for one in SUMMARIES},
            level=level,
            reached=tuple(
                summarise_curve(curve.x, curve.values.mean(axis=1), budget=end, level=level).reached
                for curve in curves[name]
            ),
        )
        for name in order
    )


def _tables(curves: Sequence[RunCurve], start: float, end: float) -> dict[str, np.ndarray]:
    """[runs, problems] of each summary.

    The best evaluation of a run is that of its mean over problems; its area begins where all curves do, and is that of
    the mean curve for the mean over problems, as it is linear.
    """
    found: dict[str, list[np.ndarray]] = {name: [] for name in SUMMARIES}
    for curve in curves:
        whole = summarise_curve(curve.x, curve.values.mean(axis=1), budget=end)
        found["final"].append(curve.at(end))
        found["best"].append(curve.at(whole.best_at))
        found["area"].append(_area(curve, start, end))
    return {name: np.stack(rows) for name, rows in found.items()}


def _area(curve: RunCurve, start: float, end: float) -> np.ndarray:
    """[problems] The mean height between two budgets; the height itself where they are one."""
    if start == end:
        return curve.at(end)
    x = np.unique(np.concatenate([[start], curve.x[(curve.x > start) & (curve.x < end)], [end]]))
    heights = np.stack([curve.at(one) for one in x])
    return np.array([summarise_curve(x, column).area for column in heights.T])
