"""The bands of held-out evaluations in training: over runs and problems, as a comparison's intervals are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlvr_cli.compare.means import arm_mean
from rlvr_cli.report.charts.series import Recorded
from rlvr_cli.results.lines import Interval
from rlvr_cli.results.spending import Curve, curve_values


def crossed_band(runs: Sequence[Recorded], budget: str, metric: str, at: np.ndarray) -> Interval | None:
    """The ends of the 95% interval of the mean over runs and problems at each budget of ``at``, NaN where none is.

    A problem's values are joined by straight lines, as in `rlvr compare --match`. None where the evaluations are not
    all on disk, or not of the same problems: then there are only the runs' means.
    """
    curves = [run.held_out for run in runs]
    whole = [curve for curve in curves if curve is not None]
    if len(whole) < len(curves):
        return None
    every = [one for curve in whole for one in curve.evaluations]
    ids = [row.id for row in every[0].rows]
    if any({row.id for row in one.rows} != set(ids) or metric not in one.rows[0].values for one in every):
        return None
    scores = np.stack([_at(curve, budget, metric, ids, at) for curve in whole])
    means = [arm_mean(scores[:, place], metric) for place in range(len(at))]
    ends = np.array([[np.nan if end is None else end for end in (one.low, one.high)] for one in means])
    return ends[:, 0], ends[:, 1]


def _at(curve: Curve, budget: str, metric: str, ids: Sequence[str], at: np.ndarray) -> np.ndarray:
    """[budgets, problems]"""
    values = curve_values(curve, metric, int(curve.evaluations[0].result["samples"]), ids)
    places = np.interp(at, curve.budget(budget), np.arange(len(values)))
    before = np.floor(places).astype(int)
    after = np.minimum(before + 1, len(values) - 1)
    share = (places - before)[:, None]
    between: np.ndarray = values[before] * (1 - share) + values[after] * share
    return between
