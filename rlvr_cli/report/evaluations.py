"""The evaluations of a report: all that was measured, before and after training, and at equal budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlvr_cli.compare.evaluations import common_problems
from rlvr_cli.compare.read import read_task
from rlvr_cli.compare.results import Contrast, TaskComparison, arm_mean, bounded, compare_task
from rlvr_cli.compare.words import p_text
from rlvr_cli.core.errors import UserError, collecting
from rlvr_cli.core.table import Table
from rlvr_cli.core.text import capital, count
from rlvr_cli.evaluation.tables import metric_name, with_interval
from rlvr_cli.report.data import ReportData
from rlvr_cli.stats.clustered import CrossedEstimate, crossed_difference
from rlvr_cli.stats.intervals import of_difference
from rlvr_cli.store.arm import Arm
from rlvr_cli.store.evaluation import Evaluation, evaluations_in, finals, group_by_settings, has_evaluation, last
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import bounds, held_out_accuracy
from rlvr_cli.store.training import BUDGETS, whole_rows
from rlvr_cli.store.values import metric_of, problem_values

BASE = "before training"

# When an evaluation was made, in words, and the evaluation.
Moment = tuple[str, Evaluation]


@dataclass(frozen=True)
class MeasuredSetting:
    """Evaluations under one setting, of the last checkpoint of each run that has one, by arm. ``title`` names it."""

    title: str
    arms: Mapping[str, tuple[Evaluation, ...]]

    @property
    def evaluations(self) -> list[Evaluation]:
        """Return the evaluations of all arms."""
        return [evaluation for own in self.arms.values() for evaluation in own]


def measured(subject: ReportData, problems: list[str]) -> list[MeasuredSetting]:
    """Return the evaluations of a page: the compared ones, else every setting of some run's evaluations.

    Args:
        problems: gets a line for each that is damaged.
    """
    compared = subject.comparison.scores.evaluations if subject.comparison is not None else {}
    by_setting: dict[str, dict[str, tuple[Evaluation, ...]]] = {}
    for arm in subject.arms:
        for run in arm.runs.values():
            alike: dict[str, list[Evaluation]] = {}
            if compared:
                alike = {"": [compared[run.path]]} if run.path in compared else {}
            else:
                with collecting(problems):
                    alike = group_by_settings(finals(run.dir))
            for key, evaluations in alike.items():
                arms = by_setting.setdefault(key, {})
                arms[arm.name] = (*arms.get(arm.name, ()), last(evaluations))
    return [MeasuredSetting(_title(next(iter(arms.values()))[0]), arms) for _, arms in sorted(by_setting.items())]


def measures_table(setting: MeasuredSetting) -> Table | None:
    """Return metrics by arms, means over runs and the problems that all have; None without a common problem."""
    ids, metrics = _common(setting)
    if not ids:
        return None
    rows = [[metric_name(name).strip(), *(_mean(name, own, ids) for own in setting.arms.values())] for name in metrics]
    seeds = "; ".join(f"{name}: {count(len(own), 'run')}" for name, own in setting.arms.items())
    return Table(
        f"{setting.title}, {count(len(ids), 'problem')}",
        ("measure", *(f"{name} [95%]" for name in setting.arms)),
        rows,
        note=f"Means over problems and runs ({seeds}). Intervals of two arms may overlap where their paired difference "
        "is clear.",
    )


def final_accuracy(setting: MeasuredSetting) -> tuple[str, str] | None:
    """Return the only arm's accuracy, in a line and in full; None without problems or accuracy.

    `avg@8 is 0.733 after training.` and `avg@8 0.733 [0.676, 0.791] (kk-gen, test: ...)`
    """
    ids, metrics = _common(setting)
    metric = _accuracy(metrics)
    if not ids or metric is None:
        return None
    ((_, own),) = setting.arms.items()
    value = _mean(metric, own, ids)
    return (
        f"{capital(held_out_accuracy(metric))} is {value.split()[0]} after training.",
        f"{metric_name(metric).strip()} {value} ({setting.title}, {count(len(ids), 'problem')}, "
        f"{count(len(own), 'run')})",
    )


def accuracies(setting: MeasuredSetting) -> tuple[str, dict[str, CrossedEstimate]]:
    """Return the name of the accuracy that all evaluations have, and its mean by arm; none without a common problem."""
    ids, metrics = _common(setting)
    metric = _accuracy(metrics)
    if not ids or metric is None:
        return "", {}
    return metric, {name: _estimate(metric, own, ids) for name, own in setting.arms.items()}


def _accuracy(metrics: Sequence[str]) -> str | None:
    return next((name for name in metrics if name.startswith("avg@")), "greedy" if "greedy" in metrics else None)


def _common(setting: MeasuredSetting) -> tuple[list[str], list[str]]:
    """Return the problems that all evaluations have, and the metrics that all of their problems have."""
    evaluations = setting.evaluations
    rows = [row for evaluation in evaluations for row in evaluation.rows]
    names = evaluations[0].rows[0].values
    return common_problems(evaluations), [name for name in names if all(name in row.values for row in rows)]


def _mean(metric: str, evaluations: Sequence[Evaluation], ids: Sequence[str]) -> str:
    return with_interval(metric, _estimate(metric, evaluations, ids))


def _estimate(metric: str, evaluations: Sequence[Evaluation], ids: Sequence[str]) -> CrossedEstimate:
    tables = [{row.id: row.values[metric] for row in evaluation.rows} for evaluation in evaluations]
    scores = np.array([[values[problem] for problem in ids] for values in tables])
    limits = bounds(metric, *(evaluation.result for evaluation in evaluations))
    return arm_mean(scores, bounds=limits)


def _title(evaluation: Evaluation) -> str:
    result = evaluation.result
    samples = count(result["samples"], "sample") + " a problem" if result["samples"] else "greedy"
    sampling = ", ".join(f"{key} {value}" for key, value in result["sampling"].items() if key != "seed")
    return f"{result['benchmark']}, {result['split']}: {samples}, {sampling}"


@dataclass(frozen=True)
class MetricChange:
    """One arm's metric at two times, over the same runs and problems.

    Attributes:
        of: benchmark, split and size of the evaluations.
        first, last: when: `before training`, `after 20 rollouts`.
        untrained: the evaluations of the model before training, each once.
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
    def clear(self) -> bool:
        """Return whether the interval of the difference leaves out 0; one that is the same everywhere is clear too."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return self.difference.seeds * self.difference.problems > 1
        return low > 0 or high < 0

    @property
    def verb(self) -> str:
        """Return how it moved: `went` where no difference is detected."""
        if not self.clear or not self.difference.value:
            return "went"
        return "rose" if self.difference.value > 0 else "fell"


def change_of(arm: Arm, root: Path, problems: list[str]) -> MetricChange | None:
    """Return how an arm's accuracy changed; None where no two evaluations of the same problems are of two times.

    From the untrained model to the final checkpoint, where `rlvr eval RUN --against MODEL` has evaluated both under the
    same settings; else from the first to the last held-out evaluation of training.

    Args:
        root: the folder of runs; the evaluations of models are next to it. problems: gets a line for each damaged one.
    """
    every = list(arm.runs.values())
    runs = [run for run in every if run.manifest.get("status") == "finished"] or every
    pairs = [_with_base(run, root, problems) for run in runs]
    settings = [pair[1][1].settings for pair in pairs if pair is not None]
    if len(settings) < len(runs) or any(other != settings[0] for other in settings):
        pairs = [first_and_last(run, problems) for run in runs]
    measured_twice = [pair for pair in pairs if pair is not None]
    if not measured_twice:
        return None
    with collecting(problems):
        return _change(arm, [first for first, _ in measured_twice], [last for _, last in measured_twice])
    return None


def in_short(change: MetricChange) -> str:
    """Return `Held-out accuracy (avg@4) rose from 0.314 before training to 0.919 after 60 rollouts.`"""
    start, end = (f"{estimate.value:.3f}" for estimate in (change.before, change.after))
    metric = held_out_accuracy(change.metric)
    if not change.clear:
        return f"No change of {metric} detected: {start} {change.first}, {end} {change.last}."
    return f"{capital(metric)} {change.verb} from {start} {change.first} to {end} {change.last}."


def change_in_words(change: MetricChange) -> str:
    """Return `Accuracy (avg@4 on kk-gen, dev, 24 problems x 4 samples) rose from 0.314 [...] before training to ...`"""
    start, end = (with_interval(change.metric, estimate) for estimate in (change.before, change.after))
    difference = with_interval(change.metric, change.difference, signed=True)
    doubt = "" if change.clear else ", so no difference is detected"
    seeds = change.difference.seeds
    single = " The interval is over problems alone: another seed may differ." if seeds == 1 else ""
    return (
        f"Accuracy ({change.subject}) {change.verb} from {start} {change.first} to {end} {change.last}: {difference}, "
        f"{count(seeds, 'seed')} x {count(change.difference.problems, 'problem')}{doubt}.{single}"
    )


def changes_table(changes: Mapping[str, MetricChange]) -> Table | None:
    """Return a row for each arm; None without arms. The caption and the header hold values that all arms share."""
    if not changes:
        return None
    every = list(changes.values())
    subjects, first, last = ({getattr(change, name) for change in every} for name in ("subject", "first", "last"))
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
        *(("measured",) if several else ()),
        f"{every[0].first if len(first) == 1 else 'before'} [95%]",
        f"{every[0].last if len(last) == 1 else 'after'} [95%]",
        "difference [95%]",
    )
    caption = "In the course of training" + ("" if several else f": {every[0].subject}")
    seeds = "; ".join(f"{arm}: {count(change.difference.seeds, 'run')}" for arm, change in changes.items())
    return Table(caption, header, rows, texts=(1,) if several else (), note=seeds)


def _change(arm: Arm, first: Sequence[Moment], last: Sequence[Moment]) -> MetricChange | None:
    evaluations = [evaluation for _, evaluation in (*first, *last)]
    metric, samples = metric_of(None, {f"{number}": each for number, each in enumerate(evaluations)})
    ids = common_problems(evaluations)
    if not ids:
        return None
    before, after = (
        np.array([problem_values(evaluation, metric, samples, ids) for _, evaluation in moments])
        for moments in (first, last)
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
        difference=bounded(crossed_difference([after], [before]), of_difference(limits)),
        untrained=tuple({evaluation.folder: evaluation for when, evaluation in first if when == BASE}.values()),
    )


def first_and_last(run: Run, problems: list[str]) -> tuple[Moment, Moment] | None:
    """Return the first and the last held-out evaluation of training; None without two."""
    every: list[Evaluation] = []
    with collecting(problems):
        every = run.held_out
    if len(every) < 2:
        return None
    first, final = ((f"after {count(each.result['rollouts'], 'rollout')}", each) for each in (every[0], every[-1]))
    return first, final


def _with_base(run: Run, root: Path, problems: list[str]) -> tuple[Moment, Moment] | None:
    """Return the evaluations of the untrained model and of the run's newest checkpoint under the same settings."""
    folders = dict.fromkeys([root / "evals", run.dir.path.parent / "evals", run.dir.path.parent.parent / "evals"])
    bases = [
        base
        for folder in folders
        for base in evaluations_in(folder)
        if not base.steps and _same_model(base.result["model"], run.config.model.name)
    ]
    of_run: list[Evaluation] = []
    with collecting(problems):
        of_run = finals(run.dir) if bases else []
    pairs = {
        after.folder: (base, after)
        for after in of_run
        for base in bases
        if base.settings == {**after.settings, "averaged": 1} and base.size[0] == after.size[0]
    }
    if not pairs:
        return None
    final = last(after for _, after in pairs.values())
    return (BASE, pairs[final.folder][0]), (f"after {count(_trained(run, final), 'rollout')}", final)


def _same_model(first: str, second: str) -> bool:
    return first == second or Path(first).expanduser().resolve() == Path(second).expanduser().resolve()


def _trained(run: Run, evaluation: Evaluation) -> int:
    """Return the rollouts until the checkpoint that was evaluated, which need not be the last."""
    rows = whole_rows(run.steps.metrics)
    ends = [row["rollout"] + 1 for row in rows if row.get("step") in evaluation.steps]
    return int(max(ends, default=run.manifest["rollout"]))


@dataclass(frozen=True)
class Budgets:
    """``table``: None where no budget gives one. ``without``: why a budget gives none, a line each."""

    table: Table | None
    without: tuple[str, ...]


def budgets(subject: ReportData) -> Budgets:
    """Return the difference of each arm to the baseline at the largest common budget, a row for each budget.

    Nothing where final checkpoints are not what is compared, or the runs have no held-out evaluations from training.
    """
    if subject.comparison is None or subject.request.match is not None:
        return Budgets(None, ())
    if not all(has_evaluation(run.dir.held_out_dir) for run in subject.readiness.runs):
        return Budgets(None, ())
    base = subject.comparison.scores.baseline
    request = replace(subject.request, baseline=base, benchmark=None, where=(), power=None, permutation=False)
    comparisons, without = dict[str, TaskComparison](), list[str]()
    for budget in BUDGETS:
        try:
            comparisons[budget] = compare_task(read_task(replace(request, match=budget), subject.readiness.runs))
        except UserError as error:
            without.append(f"Not at equal {budget}: {' '.join(error.problems)}")
    return Budgets(_budgets_table(comparisons, base) if comparisons else None, tuple(without))


def _budgets_table(comparisons: Mapping[str, TaskComparison], base: str) -> Table:
    first = next(iter(comparisons.values()))
    scores, arms = first.scores, [row.arm for row, _ in first.others]
    rows = []
    for budget, comparison in comparisons.items():
        end = comparison.scores.end
        cells = {row.arm: _budget_cell(scores.metric, contrast) for row, contrast in comparison.others}
        amount = f"{end:,.0f}" if end >= 100 else f"{end:,.3g}"
        rows.append((f"{amount} {budget}", *(cells[arm] for arm in arms)))
    samples = f" x {count(scores.samples, 'sample')}" if scores.samples else ", greedy"
    corrected = "p after Holm's correction within a budget. " if first.tested else ""
    return Table(
        f"At equal budget: difference to {base} [95%]",
        ("at", *arms),
        rows,
        note=f"{metric_name(scores.metric).strip()} of the held-out evaluations in training "
        f"({scores.settings['split']}, {count(len(scores.problems), 'problem')}{samples}), linear between them, at the "
        f"most that all runs have; not of the final checkpoints above. {corrected}`rlvr compare --match` has the rest.",
    )


def _budget_cell(metric: str, contrast: Contrast) -> str:
    difference = with_interval(metric, contrast.difference, signed=True)
    return difference if contrast.verdict == "single" else f"{difference}, p {p_text(contrast.p_holm)}"
