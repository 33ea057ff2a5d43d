"""Metrics of a report's learning curves, and their values in a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from rlvr_cli.charts.lines import Band, Points, YAxis, metric_axis
from rlvr_cli.compare.results import arm_mean
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import finite
from rlvr_cli.core.text import capitalize
from rlvr_cli.stats.intervals import share_interval_of_error
from rlvr_cli.store.evaluation import has_evaluation
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import METRICS, accuracy_of, at_k, bounds, held_out_accuracy
from rlvr_cli.store.training import average_by_rollout, last_steps, recorded_values
from rlvr_cli.store.values import HeldOut, read_held_out

# Larger values are dropped: their sums may overflow.
_MOST = 1e100


@dataclass(frozen=True)
class MetricFigure:
    """A figure of one metric, or of several as panels.

    Attributes:
        panels: metric by panel title. note: first sentence of the caption.
        held_out: whether the metrics are those of held-out evaluations, not of training completions.
    """

    key: str
    title: str
    axis: YAxis
    panels: Mapping[str, str]
    note: str
    held_out: bool = False


def metric_figures(runs: Sequence[RunRecords]) -> list[MetricFigure]:
    figures = []
    for key, names in groupby(METRICS, lambda name: METRICS[name].figure or re.sub("[_/]", "-", name)):
        first, *others = names
        metric = METRICS[first]
        if first == "eval":
            figures += _held_out_figures(runs)
        elif metric.axis:
            panels = {METRICS[name].label if others else "": name for name in (first, *others)}
            figures.append(MetricFigure(key, metric.heading, metric_axis(metric), panels, metric.note))
    return figures


def _held_out_figures(runs: Sequence[RunRecords]) -> list[MetricFigure]:
    """Return accuracy (avg@n if common to all evaluations, else greedy), pass@k and maj@k."""
    evaluated = [names for run in runs if (names := held_out_metrics(run))]
    common = [name for name in evaluated[0] if all(name in names for names in evaluated)] if evaluated else []
    figures = []
    accuracy = accuracy_of(common)
    measured = "Held-out evaluations during training"
    if accuracy is not None:
        of = "greedy completions" if accuracy == "greedy" else f"{accuracy}: share of correct samples"
        title, axis = capitalize(held_out_accuracy(accuracy)), metric_axis(METRICS["eval"])
        note = f"{measured}, {of}."
        figures.append(MetricFigure("held-out-accuracy", title, axis, {"": accuracy}, note, held_out=True))
    for kind, meaning in (("pass", "at least one of k samples is correct"), ("maj", "the majority of k is correct")):
        forms = {name: form for name in common if (form := at_k(name)) and form[0] == kind}
        ranked = sorted((int(k), name) for name, (_, k) in forms.items() if k not in ("1", "n"))
        if ranked:
            figures.append(
                MetricFigure(
                    f"held-out-{kind}-at-k",
                    f"{kind}@k during training",
                    YAxis(f"{kind}@k", share=True),
                    {name: name for _, name in ranked},
                    f"{measured}; {kind}@k: {meaning}.",
                    held_out=True,
                )
            )
    return figures


@dataclass(frozen=True)
class RunRecords:
    run: Run
    rows: tuple[dict[str, Any], ...]
    spent: Mapping[int, float]

    @cached_property
    def held_out(self) -> HeldOut | None:
        """Return the held-out evaluations by problem; None without any. Raises RunError for damaged ones."""
        if not has_evaluation(self.run.dir.held_out_dir):
            return None
        try:
            return read_held_out(self.run)
        except RunError:
            if self.run.manifest.get("status") == "finished":
                raise
            return None

    def curve(self, name: str, *, held_out: bool = False) -> tuple[Points, int] | None:
        """Return a metric over the budget, a point per rollout, and the number of non-finite values; None if absent."""
        values = recorded_values(self.rows, name, held_out=held_out)
        if not values:
            return None
        points = [(self.spent[rollout], value) for rollout, value in average_by_rollout(values) if abs(value) < _MOST]
        missing = len({rollout for rollout, _ in values}) - len(points)
        x, y = np.array(points).T if points else (np.zeros(0), np.zeros(0))
        x, y = x[np.isfinite(x)], y[np.isfinite(x)]
        # Rollouts with equal budgets, as with a stopped clock, share a point.
        grown = np.append(np.diff(x) > 0, True) if len(x) else np.zeros(0, bool)
        return (x[grown], y[grown]), missing

    def band(self, name: str, spent: np.ndarray, *, held_out: bool) -> Band | None:
        """Return the run's 95% interval over problems at each budget in ``spent``; None without any."""
        ends = held_out_intervals(self, name) if held_out else rollout_intervals(self, name)
        if not ends:
            return None
        at = {self.spent[rollout]: pair for rollout, pair in ends.items() if rollout in self.spent}
        table = np.array([at.get(x, (np.nan, np.nan)) for x in spent.tolist()])
        return table[:, 0], table[:, 1]


def read_run_records(run: Run, budget: str) -> RunRecords:
    steps = run.steps
    if not steps.metrics or (not steps.timings and run.manifest.get("status") != "finished"):
        return RunRecords(run, (), {})
    at = {done - 1: float(run.spent[budget][step - 1]) for done, step in last_steps(run.spent).items()}
    return RunRecords(run, tuple(steps.metrics[: len(run.spent["updates"])]), at)


def rollout_intervals(records: RunRecords, name: str) -> dict[int, tuple[float, float]]:
    """Return the 95% interval of a share over prompts by rollout (from 0), from `NAME/se`."""
    ends = {}
    for row in records.rows:
        value, error = finite(row.get(name)), finite(row.get(f"{name}/se"))
        if value is not None and error is not None and METRICS[name].share:
            estimate = share_interval_of_error(value, error, max(2, records.run.config.rollout.prompts))
            if estimate.low is not None and estimate.high is not None:
                ends[row["rollout"]] = (estimate.low, estimate.high)
    return ends


def held_out_intervals(records: RunRecords, name: str) -> dict[int, tuple[float, float]]:
    """Return a metric's 95% interval over problems by rollout (from 0). Raises RunError for damaged evaluations."""
    results = (evaluation.result for evaluation in records.run.held_out)
    estimates = {result["rollouts"] - 1: result["metrics"].get(name, {}) for result in results}
    ends = {rollout: (finite(each.get("low")), finite(each.get("high"))) for rollout, each in estimates.items()}
    return {rollout: (low, high) for rollout, (low, high) in ends.items() if low is not None and high is not None}


def held_out_metrics(records: RunRecords) -> list[str]:
    lines = [row["eval"] for row in records.rows if isinstance(row.get("eval"), dict)]
    return [name for name in lines[0] if all(name in line for line in lines)] if lines else []


def crossed_band(runs: Sequence[RunRecords], budget: str, metric: str, at: np.ndarray) -> Band | None:
    """Return the 95% interval of the mean over runs and problems at each budget of ``at``, NaN if undefined.

    Interpolated linearly by problem, as in `rlvr compare --match`. None for missing evaluations or different problems.
    """
    curves = [curve for run in runs if (curve := run.held_out) is not None]
    if len(curves) < len(runs):
        return None
    evaluations = [evaluation for curve in curves for evaluation in curve.evaluations]
    ids = [row.id for row in evaluations[0].rows]
    if any({row.id for row in each.rows} != set(ids) or metric not in each.rows[0].values for each in evaluations):
        return None
    samples = int(evaluations[0].result["samples"])
    scores = np.stack([curve.curve(budget, metric, samples, ids).at(at) for curve in curves])
    limits = bounds(metric, *(evaluation.result for evaluation in evaluations))
    means = [arm_mean(scores[:, index], bounds=limits) for index in range(len(at))]
    ends = np.array([[np.nan if end is None else end for end in (mean.low, mean.high)] for mean in means])
    return ends[:, 0], ends[:, 1]
