"""Evaluations of a report: final metrics, changes during training, and comparisons at equal budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlvr_cli.compare.evaluations import common_problems
from rlvr_cli.compare.read import read_task
from rlvr_cli.compare.results import Contrast, TaskComparison, arm_mean, bounded, compare_task
from rlvr_cli.compare.words import format_p
from rlvr_cli.core.errors import UserError, collect_problems
from rlvr_cli.core.table import Table
from rlvr_cli.core.text import capitalize, count
from rlvr_cli.evaluation.tables import metric_name, with_interval
from rlvr_cli.report.data import ReportData
from rlvr_cli.stats.clustered import CrossedEstimate, crossed_difference
from rlvr_cli.stats.intervals import difference_bounds
from rlvr_cli.store.arm import Arm
from rlvr_cli.store.evaluation import (
    Evaluation,
    final_evaluations,
    group_by_settings,
    has_evaluation,
    last,
    read_undamaged,
)
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import accuracy_of, bounds, held_out_accuracy
from rlvr_cli.store.training import BUDGETS, filter_step_rows
from rlvr_cli.store.values import problem_values, resolve_metric

BASE = "before training"

# An evaluation with its time as text: `after 20 rollouts`.
TimedEvaluation = tuple[str, Evaluation]


@dataclass(frozen=True)
class EvaluatedSetting:
    """Evaluations of the runs' last checkpoints under one setting, by arm."""

    title: str
    arms: Mapping[str, tuple[Evaluation, ...]]

    @property
    def evaluations(self) -> list[Evaluation]:
        return [evaluation for evaluations in self.arms.values() for evaluation in evaluations]


def select_evaluations(data: ReportData, problems: list[str]) -> list[EvaluatedSetting]:
    """Return the compared evaluations of a page, else those of all settings; errors are added to ``problems``."""
    compared = data.comparison.scores.evaluations if data.comparison is not None else {}
    by_setting: dict[str, dict[str, tuple[Evaluation, ...]]] = {}
    for arm in data.arms:
        for run in arm.runs.values():
            groups: dict[str, list[Evaluation]] = {}
            if compared:
                groups = {"": [compared[run.path]]} if run.path in compared else {}
            else:
                with collect_problems(problems):
                    groups = group_by_settings(final_evaluations(run.dir))
            for key, evaluations in groups.items():
                arms = by_setting.setdefault(key, {})
                arms[arm.name] = (*arms.get(arm.name, ()), last(evaluations))
    return [
        EvaluatedSetting(_format_title(next(iter(arms.values()))[0]), arms) for _, arms in sorted(by_setting.items())
    ]


def metrics_table(setting: EvaluatedSetting) -> Table | None:
    """Return the metrics by arm, means over runs and common problems; None without a common problem."""
    ids, metrics = _intersect(setting)
    if not ids:
        return None
    rows = [
        [metric_name(name).strip(), *(_format_mean(name, arm, ids) for arm in setting.arms.values())]
        for name in metrics
    ]
    seeds = "; ".join(f"{name}: {count(len(arm), 'run')}" for name, arm in setting.arms.items())
    return Table(
        f"{setting.title}, {count(len(ids), 'problem')}",
        ("metric", *(f"{name} [95%]" for name in setting.arms)),
        rows,
        note=f"Means over problems and runs ({seeds}). Paired differences can be significant even if intervals "
        "overlap.",
    )


def final_accuracy(setting: EvaluatedSetting) -> tuple[str, str] | None:
    """Return the accuracy of the only arm, short and in full; None without problems or accuracy.

    `avg@8 is 0.733 after training.` and `avg@8 0.733 [0.676, 0.791] (kk-gen, test: ...)`
    """
    ids, metrics = _intersect(setting)
    metric = accuracy_of(metrics)
    if not ids or metric is None:
        return None
    (evaluations,) = setting.arms.values()
    value = _format_mean(metric, evaluations, ids)
    return (
        f"{capitalize(held_out_accuracy(metric))} is {value.split()[0]} after training.",
        f"{metric_name(metric).strip()} {value} ({setting.title}, {count(len(ids), 'problem')}, "
        f"{count(len(evaluations), 'run')})",
    )


def mean_accuracies(setting: EvaluatedSetting) -> tuple[str, dict[str, CrossedEstimate]]:
    """Return the name of the common accuracy, and its mean by arm; empty without common problems."""
    ids, metrics = _intersect(setting)
    metric = accuracy_of(metrics)
    if not ids or metric is None:
        return "", {}
    return metric, {name: _estimate_mean(metric, evaluations, ids) for name, evaluations in setting.arms.items()}


def _intersect(setting: EvaluatedSetting) -> tuple[list[str], list[str]]:
    evaluations = setting.evaluations
    rows = [row for evaluation in evaluations for row in evaluation.rows]
    names = evaluations[0].rows[0].values
    return common_problems(evaluations), [name for name in names if all(name in row.values for row in rows)]


def _format_mean(metric: str, evaluations: Sequence[Evaluation], ids: Sequence[str]) -> str:
    return with_interval(metric, _estimate_mean(metric, evaluations, ids))


def _estimate_mean(metric: str, evaluations: Sequence[Evaluation], ids: Sequence[str]) -> CrossedEstimate:
    tables = [{row.id: row.values[metric] for row in evaluation.rows} for evaluation in evaluations]
    scores = np.array([[values[problem] for problem in ids] for values in tables])
    limits = bounds(metric, *(evaluation.result for evaluation in evaluations))
    return arm_mean(scores, bounds=limits)


def _format_title(evaluation: Evaluation) -> str:
    result = evaluation.result
    samples = count(result["samples"], "sample") + " a problem" if result["samples"] else "greedy"
    sampling = ", ".join(f"{key} {value}" for key, value in result["sampling"].items() if key != "seed")
    return f"{result['benchmark']}, {result['split']}: {samples}, {sampling}"


@dataclass(frozen=True)
class MetricChange:
    """An arm's metric at two times, over the same runs and problems.

    Attributes:
        of: benchmark, split and size of the evaluations.
        first, last: their times: `before training`, `after 20 rollouts`.
        untrained: distinct evaluations of the model before training.
    """

    arm: str
    metric: str
    of: str
    first: str
    last: str
    before: CrossedEstimate
    after: CrossedEstimate
    difference: CrossedEstimate
    untrained: tuple[Evaluation, ...]

    @property
    def subject(self) -> str:
        """Return `avg@4 on kk-gen, dev, 24 problems x 4 samples`."""
        return f"{metric_name(self.metric)} on {self.of}"

    @property
    def significant(self) -> bool:
        """Return True if the interval of the difference excludes 0, or all differences are equal and not 0."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return self.difference.value != 0 and self.difference.seeds * self.difference.problems > 1
        return low > 0 or high < 0

    @property
    def verb(self) -> str:
        """Return `rose`, `fell`, or `went` for an insignificant change."""
        if not self.significant or not self.difference.value:
            return "went"
        return "rose" if self.difference.value > 0 else "fell"


def measure_change(arm: Arm, root: Path, problems: list[str]) -> MetricChange | None:
    """Return the change of an arm's accuracy; None without evaluations of the same problems at two times.

    From the untrained model to the final checkpoint if `rlvr eval RUN --against MODEL` has evaluated both under the
    same settings; else from the first to the last held-out evaluation of training.

    Args:
        root: the folder of runs; evaluations of models are next to it. problems: errors of damaged ones are appended.
    """
    all_runs = list(arm.runs.values())
    runs = [run for run in all_runs if run.manifest.get("status") == "finished"] or all_runs
    pairs = [_pair_with_base(run, root, problems) for run in runs]
    settings = [pair[1][1].settings for pair in pairs if pair is not None]
    if len(settings) < len(runs) or any(other != settings[0] for other in settings):
        pairs = [find_first_and_last(run, problems) for run in runs]
    complete = [pair for pair in pairs if pair is not None]
    if not complete:
        return None
    with collect_problems(problems):
        return _compare_times(arm, [first for first, _ in complete], [last for _, last in complete])
    return None


def summarize_change(change: MetricChange) -> str:
    """Return `Held-out accuracy (avg@4) rose from 0.314 before training to 0.919 after 60 rollouts.`"""
    start, end = (f"{estimate.value:.3f}" for estimate in (change.before, change.after))
    metric = held_out_accuracy(change.metric)
    if not change.significant:
        return f"No change of {metric} detected: {start} {change.first}, {end} {change.last}."
    return f"{capitalize(metric)} {change.verb} from {start} {change.first} to {end} {change.last}."


def describe_change(change: MetricChange) -> str:
    """Return `Accuracy (avg@4 on kk-gen, dev, 24 problems x 4 samples) rose from 0.314 [...] before training to ...`"""
    start, end = (with_interval(change.metric, estimate) for estimate in (change.before, change.after))
    difference = with_interval(change.metric, change.difference, signed=True)
    doubt = "" if change.significant else ", no change detected"
    seeds = change.difference.seeds
    single = " One seed: the interval is over problems only." if seeds == 1 else ""
    return (
        f"Accuracy ({change.subject}) {change.verb} from {start} {change.first} to {end} {change.last}: {difference}, "
        f"{count(seeds, 'seed')} x {count(change.difference.problems, 'problem')}{doubt}.{single}"
    )


def changes_table(changes: Mapping[str, MetricChange]) -> Table | None:
    """Return a row per arm; None without arms. The caption and the header hold values common to all arms."""
    if not changes:
        return None
    change_list = list(changes.values())
    subjects, first, last = ({getattr(change, name) for change in change_list} for name in ("subject", "first", "last"))
    several = len(subjects) > 1
    rows = []
    for arm, change in changes.items():
        before, after = (with_interval(change.metric, estimate) for estimate in (change.before, change.after))
        rows.append(
            (
                arm,
                *((change.subject,) if several else ()),
                before if len(first) == 1 else f"{before} {change.first}",
                after if len(last) == 1 else f"{after} {change.last}",
                with_interval(change.metric, change.difference, signed=True),
            )
        )
    header = (
        "arm",
        *(("metric",) if several else ()),
        f"{change_list[0].first if len(first) == 1 else 'before'} [95%]",
        f"{change_list[0].last if len(last) == 1 else 'after'} [95%]",
        "difference [95%]",
    )
    caption = "Change during training" + ("" if several else f": {change_list[0].subject}")
    seeds = "; ".join(f"{arm}: {count(change.difference.seeds, 'run')}" for arm, change in changes.items())
    return Table(caption, header, rows, texts=(1,) if several else (), note=seeds)


def _compare_times(arm: Arm, first: Sequence[TimedEvaluation], last: Sequence[TimedEvaluation]) -> MetricChange | None:
    evaluations = [evaluation for _, evaluation in (*first, *last)]
    metric, samples = resolve_metric(None, {f"{number}": each for number, each in enumerate(evaluations)})
    ids = common_problems(evaluations)
    if not ids:
        return None
    before, after = (
        np.array([problem_values(evaluation, metric, samples, ids) for _, evaluation in timed])
        for timed in (first, last)
    )
    result, limits = last[0][1].result, bounds(metric, *(evaluation.result for evaluation in evaluations))
    size = f" x {count(samples, 'sample')}" if samples else ", greedy"
    return MetricChange(
        arm=arm.name,
        metric=metric,
        of=f"{result['benchmark']}, {result['split']}, {count(len(ids), 'problem')}{size}",
        first=" or ".join(sorted({when for when, _ in first})),
        last=" or ".join(sorted({when for when, _ in last})),
        before=arm_mean(before, bounds=limits),
        after=arm_mean(after, bounds=limits),
        difference=bounded(crossed_difference([after], [before]), difference_bounds(limits)),
        untrained=tuple({evaluation.folder: evaluation for when, evaluation in first if when == BASE}.values()),
    )


def find_first_and_last(run: Run, problems: list[str]) -> tuple[TimedEvaluation, TimedEvaluation] | None:
    """Return the first and the last held-out evaluation of training; None without two."""
    evaluations: list[Evaluation] = []
    with collect_problems(problems):
        evaluations = run.held_out
    if len(evaluations) < 2:
        return None
    first, final = (
        (f"after {count(each.result['rollouts'], 'rollout')}", each) for each in (evaluations[0], evaluations[-1])
    )
    return first, final


def _pair_with_base(run: Run, root: Path, problems: list[str]) -> tuple[TimedEvaluation, TimedEvaluation] | None:
    """Return the evaluations of the untrained model and of the run's newest checkpoint under the same settings."""
    folders = dict.fromkeys([root / "evals", run.dir.path.parent / "evals", run.dir.path.parent.parent / "evals"])
    bases = [
        base
        for folder in folders
        for base in read_undamaged(folder)
        if not base.steps and _is_same_model(base.result["model"], run.config.model.name)
    ]
    of_run: list[Evaluation] = []
    with collect_problems(problems):
        of_run = final_evaluations(run.dir) if bases else []
    pairs = {
        after.folder: (base, after)
        for after in of_run
        for base in bases
        if base.settings == {**after.settings, "averaged": 1} and base.size[0] == after.size[0]
    }
    if not pairs:
        return None
    final = last(after for _, after in pairs.values())
    return (BASE, pairs[final.folder][0]), (f"after {count(_count_rollouts(run, final), 'rollout')}", final)


def _is_same_model(first: str, second: str) -> bool:
    return first == second or Path(first).expanduser().resolve() == Path(second).expanduser().resolve()


def _count_rollouts(run: Run, evaluation: Evaluation) -> int:
    """Return the number of rollouts before the evaluated checkpoint, which may not be the last."""
    rows = filter_step_rows(run.steps.metrics)
    ends = [row["rollout"] + 1 for row in rows if row.get("step") in evaluation.steps]
    return int(max(ends, default=run.manifest["rollout"]))


def compare_at_budgets(data: ReportData) -> tuple[Table | None, list[str]]:
    """Return each arm's difference at the largest common budgets, and why there is none at other budgets.

    Nothing without common held-out evaluations.
    """
    evaluated = all(has_evaluation(run.dir.held_out_dir) for run in data.readiness.runs)
    if data.comparison is None or data.request.match is not None or not evaluated:
        return None, []
    base = data.comparison.scores.baseline
    request = replace(data.request, baseline=base, benchmark=None, where=(), power=None, permutation=False)
    comparisons, without = dict[str, TaskComparison](), list[str]()
    for budget in BUDGETS:
        try:
            comparisons[budget] = compare_task(read_task(replace(request, match=budget), data.readiness.runs))
        except UserError as error:
            without.append(f"No comparison at equal {budget}: {' '.join(error.problems)}")
    return _make_budgets_table(comparisons, base) if comparisons else None, without


def _make_budgets_table(comparisons: Mapping[str, TaskComparison], base: str) -> Table:
    first = next(iter(comparisons.values()))
    scores, arms = first.scores, [row.arm for row, _ in first.others]
    rows = []
    for budget, comparison in comparisons.items():
        end = comparison.scores.end
        cells = {row.arm: _format_budget_cell(scores.metric, contrast) for row, contrast in comparison.others}
        amount = f"{end:,.0f}" if end >= 100 else f"{end:,.3g}"
        rows.append((f"{amount} {budget}", *(cells[arm] for arm in arms)))
    samples = f" x {count(scores.samples, 'sample')}" if scores.samples else ", greedy"
    corrected = "p: Holm-adjusted within a budget. " if first.tested else ""
    return Table(
        f"At equal budget: difference from {base} [95%]",
        ("budget", *arms),
        rows,
        note=f"{metric_name(scores.metric).strip()} of held-out evaluations during training "
        f"({scores.settings['split']}, {count(len(scores.problems), 'problem')}{samples}), interpolated linearly at "
        f"the largest common budget; not of the final checkpoints. {corrected}See `rlvr compare --match`.",
    )


def _format_budget_cell(metric: str, contrast: Contrast) -> str:
    difference = with_interval(metric, contrast.difference, signed=True)
    return difference if contrast.verdict == "single" else f"{difference}, p {format_p(contrast.p_holm)}"
