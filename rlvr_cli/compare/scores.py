"""The numbers of each run, of its final evaluation or at a budget on its learning curve, and the means of arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlvr_cli.compare.evaluations import choose_evaluations, settings_problems, shared_problems
from rlvr_cli.compare.request import CompareRequest
from rlvr_cli.core.errors import RunError
from rlvr_cli.stats.clustered import CrossedEstimate, crossed_interval
from rlvr_cli.stats.intervals import Bounds
from rlvr_cli.store.evaluation import Evaluation
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import bounds
from rlvr_cli.store.spending import PARTS, SpendingCurve, Spent, common_budget, curve_values, read_curve, spending
from rlvr_cli.store.values import metric_of, problem_values


@dataclass(frozen=True)
class RunCurve:
    """A run's learning curve: ``x`` [points] of the budget, ``values`` [points, problems]."""

    x: np.ndarray
    values: np.ndarray

    def at(self, budget: float) -> np.ndarray:
        """[problems] The values where ``budget`` is spent, linearly between evaluations."""
        return np.array([np.interp(budget, self.x, column) for column in self.values.T])


@dataclass(frozen=True)
class RunScores:
    """What was read, by the run's path.

    Attributes:
        metric, samples: the metric and the number of samples a problem behind it. problems: ids, sorted.
        scores: [problems] of each run. spent: until the checkpoint that the scores are of.
        result: settings of the evaluations, which all share. bounds: of any mean of the metric.
        chosen: the final evaluations; none for curves.
        curves: and ``start`` and ``end``, the part that all curves have; none for final evaluations.
    """

    metric: str
    samples: int
    problems: tuple[str, ...]
    scores: Mapping[str, np.ndarray]
    spent: Mapping[str, Spent]
    result: Mapping[str, object]
    bounds: Bounds
    chosen: Mapping[str, Evaluation]
    curves: Mapping[str, RunCurve]
    start: float = 0.0
    end: float = 0.0


def read_finals(
    request: CompareRequest, runs: Sequence[Run], problems: list[str], notes: list[str]
) -> RunScores | None:
    """The samples of `rlvr eval`, newest checkpoint; None, and lines in ``problems``, where they cannot be compared."""
    evaluations = choose_evaluations(runs, problems, benchmark=request.benchmark, where=request.where)
    if not evaluations:
        return None
    ids = shared_problems(evaluations, problems, notes, only_common=request.common_problems)
    metric = metric_of(request.metric, evaluations, problems)
    if metric is None:
        return None
    scores: dict[str, np.ndarray] = {}
    spent: dict[str, Spent] = {}
    for run in runs:
        path, evaluation = run.path, evaluations[run.path]
        try:
            steps, last = spending(run), max(evaluation.steps, default=0)
            if not 1 <= last <= len(steps):
                raise RunError(f"{evaluation.folder}: of step {last}, but {len(steps)} steps are recorded in {path}.")
            spent[path] = steps[last - 1]
            values = problem_values(evaluation, *metric)
        except RunError as error:
            problems.append(str(error))
            continue
        scores[path] = np.array([values[name] for name in ids])
    _tell_samples(evaluations, metric[1], notes)
    results = [one.result for one in evaluations.values()]
    return RunScores(*metric, ids, scores, spent, results[0], bounds(metric[0], *results), evaluations, {})


def read_matched(
    request: CompareRequest, runs: Sequence[Run], problems: list[str], notes: list[str]
) -> RunScores | None:
    """The held-out evaluations of training, at the largest budget that all runs have; None as :func:`read_finals`."""
    budget = str(request.match)
    read = {run.path: read_curve(run, problems) for run in runs}
    curves = {path: curve for path, curve in read.items() if curve is not None}
    if len(curves) < len(read):
        return None
    every: dict[str, Evaluation] = {str(one.folder): one for curve in curves.values() for one in curve.evaluations}
    settings = settings_problems({path: curve.evaluations[0] for path, curve in curves.items()})
    problems.extend(settings)
    ids = shared_problems(every, problems, notes, only_common=request.common_problems)
    metric = metric_of(request.metric, every, problems)
    common = common_budget(list(curves.values()), budget, problems)
    if metric is None or common is None or settings or not ids:
        return None
    found: dict[str, RunCurve] = {}
    for path, curve in curves.items():
        try:
            found[path] = RunCurve(curve.budget(budget), curve_values(curve, *metric, ids))
        except RunError as error:
            problems.append(str(error))
    end = common[1]
    scores = {path: curve.at(end) for path, curve in found.items()}
    spent = {path: _spent_at(curve, budget, end) for path, curve in curves.items()}
    _tell_samples(every, metric[1], notes)
    results = [one.result for one in every.values()]
    limits = bounds(metric[0], *results)
    return RunScores(*metric, ids, scores, spent, results[0], limits, {}, found, *common)


def _spent_at(curve: SpendingCurve, budget: str, end: float) -> Spent:
    x = curve.budget(budget)
    return Spent(*(float(np.interp(end, x, curve.budget(part))) for part in PARTS))


def _tell_samples(evaluations: Mapping[str, Evaluation], n: int, notes: list[str]) -> None:
    counts = sorted({int(evaluation.result["samples"]) for evaluation in evaluations.values()})
    if len(counts) > 1:
        what = f"the first {n} of each are" if n else "the greedy completion of each is"
        notes.append(f"the evaluations have {', '.join(map(str, counts))} samples a problem; {what} compared.")


def arm_mean(scores: np.ndarray, bounds: Bounds) -> CrossedEstimate:
    """The mean of scores [runs, problems], its interval cut where no mean can be: of shares at 0 and 1."""
    return cut(of_methods(crossed_interval(scores)), bounds)


def cut(estimate: CrossedEstimate, bounds: Bounds) -> CrossedEstimate:
    """The estimate with its interval cut at ``bounds``; it covers what it did."""
    if estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(bounds[0], estimate.low), high=min(bounds[1], estimate.high))


def of_methods(estimate: CrossedEstimate) -> CrossedEstimate:
    """The estimate without the p of one run an arm, which is about these weights and not about what made them."""
    return estimate if estimate.spread_of_runs else replace(estimate, p_value=None)
