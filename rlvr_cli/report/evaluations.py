"""What the evaluations say: all that was measured, before and after training, and at equal budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlvr_cli.compare.read import read_task
from rlvr_cli.compare.results import ArmOnTask, TaskComparison, arm_mean, compare_task, cut
from rlvr_cli.compare.words import p_text
from rlvr_cli.core.errors import UserError, collecting
from rlvr_cli.core.table import Table
from rlvr_cli.core.text import capital, count
from rlvr_cli.evaluation.tables import metric_name, with_interval
from rlvr_cli.report.data import ReportData
from rlvr_cli.runs.records import read_record
from rlvr_cli.stats.clustered import CrossedEstimate, paired_crossed_interval
from rlvr_cli.stats.intervals import of_difference
from rlvr_cli.store.arm import Arm
from rlvr_cli.store.evaluation import Evaluation, by_settings, evaluations_in, finals, has_evaluation, held_out, last
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import bounds, held_out_accuracy
from rlvr_cli.store.training import BUDGETS, whole_rows
from rlvr_cli.store.values import metric_of, problem_values

BASE = "before training"


@dataclass(frozen=True)
class MeasuredSetting:
    """Evaluations under one setting, of the last checkpoint of each run that has one, by arm. ``title`` names it."""

    title: str
    arms: Mapping[str, tuple[Evaluation, ...]]


def measured(subject: ReportData, problems: list[str]) -> list[MeasuredSetting]:
    """The evaluations of a page: the compared ones, else every setting of some run's evaluations.

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
                    alike = by_settings(finals(run.dir))
            for key, evaluations in alike.items():
                arms = by_setting.setdefault(key, {})
                arms[arm.name] = (*arms.get(arm.name, ()), last(evaluations))
    return [MeasuredSetting(_title(next(iter(arms.values()))[0]), arms) for _, arms in sorted(by_setting.items())]


def measures_table(one: MeasuredSetting) -> Table | None:
    """Metrics by arms, means over runs and the problems that all have; None where they have no problem in common."""
    ids, metrics = _common(one)
    if not ids:
        return None
    rows = [
        [metric_name(metric).strip(), *(_cell(metric, own, ids) for own in one.arms.values())] for metric in metrics
    ]
    seeds = "; ".join(f"{name}: {count(len(own), 'run')}" for name, own in one.arms.items())
    return Table(
        f"{one.title}, {count(len(ids), 'problem')}",
        ("measure", *(f"{name} [95%]" for name in one.arms)),
        rows,
        note=f"Means over problems and runs ({seeds}). Intervals of two arms may overlap where their paired difference "
        "is clear.",
    )


def final_accuracy(one: MeasuredSetting) -> tuple[str, str] | None:
    """That of the only arm, in a line and in full; None without problems or accuracy.

    `avg@8 is 0.733 after training.` and `avg@8 0.733 [0.676, 0.791] (kk-gen, test: ...)`
    """
    ids, metrics = _common(one)
    metric = next((name for name in metrics if name.startswith("avg@")), "greedy" if "greedy" in metrics else None)
    if not ids or metric is None:
        return None
    ((_, own),) = one.arms.items()
    name = metric_name(metric).strip()
    cell = _cell(metric, own, ids)
    return (
        f"{capital(held_out_accuracy(metric))} is {cell.split()[0]} after training.",
        f"{name} {cell} ({one.title}, {count(len(ids), 'problem')}, {count(len(own), 'run')})",
    )


def _common(one: MeasuredSetting) -> tuple[list[str], list[str]]:
    """The problems that all evaluations have, and the metrics that all of their problems have."""
    everything = [evaluation for own in one.arms.values() for evaluation in own]
    ids = sorted(frozenset.intersection(*(frozenset(row.id for row in each.rows) for each in everything)))
    names = everything[0].rows[0].values
    return ids, [name for name in names if all(name in row.values for each in everything for row in each.rows)]


def _cell(metric: str, own: Sequence[Evaluation], ids: Sequence[str]) -> str:
    tables = [{row.id: row.values[metric] for row in each.rows} for each in own]
    scores = np.array([[values[name] for name in ids] for values in tables])
    estimate = arm_mean(scores, bounds(metric, *(each.result for each in own)))
    return with_interval(metric, {"value": estimate.value, "low": estimate.low, "high": estimate.high})


def _title(evaluation: Evaluation) -> str:
    result = evaluation.result
    sampling = result["sampling"]
    samples = count(result["samples"], "sample") + " a problem" if result["samples"] else "greedy"
    shown = ", ".join(f"{key} {value}" for key, value in sampling.items() if key != "seed")
    return f"{result['benchmark']}, {result['split']}: {samples}, {shown}"


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
    def said_of(self) -> str:
        """`avg@4 on kk-gen, dev, 24 problems x 4 samples`."""
        return f"{metric_name(self.metric)} on {self.of}"

    @property
    def seen(self) -> bool:
        """Whether the interval of the difference leaves out 0; a difference without one counts as seen."""
        low, high = self.difference.low, self.difference.high
        return low is None or high is None or low > 0 or high < 0

    @property
    def verb(self) -> str:
        """How it moved: `went` where no difference can be seen."""
        if not self.seen or not self.difference.value:
            return "went"
        return "rose" if self.difference.value > 0 else "fell"


@dataclass(frozen=True)
class Moment:
    """An evaluation, and when it was made."""

    when: str
    evaluation: Evaluation


def change_of(arm: Arm, root: Path, problems: list[str]) -> MetricChange | None:
    """How an arm's accuracy changed; None where no two evaluations of the same problems are of two times.

    From the untrained model to the final checkpoint, where `rlvr eval RUN --against MODEL` has evaluated both under the
    same settings; else from the first to the last held-out evaluation of training.

    Args:
        root: the folder of runs; the evaluations of models are next to it. problems: gets a line for each damaged one.
    """
    every = list(arm.runs.values())
    runs = [run for run in every if run.manifest.get("status") == "finished"] or every
    pairs = [_with_base(run, root, problems) for run in runs]
    settings = [pair[1].evaluation.settings for pair in pairs if pair is not None]
    if len(settings) < len(runs) or any(one != settings[0] for one in settings):
        pairs = [first_and_last(run, problems) for run in runs]
    whole = [pair for pair in pairs if pair is not None]
    if not whole:
        return None
    with collecting(problems):
        return _change(arm, [first for first, _ in whole], [last for _, last in whole])
    return None


def in_short(change: MetricChange) -> str:
    """`Held-out accuracy (avg@4) rose from 0.314 before training to 0.919 after 60 rollouts.`"""
    start, end = (f"{one.value:.3f}" for one in (change.before, change.after))
    what = held_out_accuracy(change.metric)
    if not change.seen:
        return f"No change of {what} can be seen: {start} {change.first}, {end} {change.last}."
    return f"{capital(what)} {change.verb} from {start} {change.first} to {end} {change.last}."


def change_in_words(change: MetricChange) -> str:
    """`Accuracy (avg@4 on kk-gen, dev, 24 problems x 4 samples) rose from 0.314 [...] before training to ...`"""
    start, end = (_figure(change.metric, one) for one in (change.before, change.after))
    difference = _figure(change.metric, change.difference, signed=True)
    doubt = "" if change.seen else ", so no difference can be seen"
    seeds = change.difference.seeds
    lone = " The interval is over problems alone: another seed may say otherwise." if seeds == 1 else ""
    return (
        f"Accuracy ({change.said_of}) {change.verb} from {start} {change.first} to {end} {change.last}: {difference}, "
        f"{count(seeds, 'seed')} x {count(change.difference.problems, 'problem')}{doubt}.{lone}"
    )


def changes_table(changes: Mapping[str, MetricChange]) -> Table | None:
    """A row for each arm; None without arms. What all share stands in the caption and the header."""
    if not changes:
        return None
    own = list(changes.values())
    of, first, last = ({getattr(one, part) for one in own} for part in ("said_of", "first", "last"))
    rows = []
    for name, one in changes.items():
        before, after = _figure(one.metric, one.before), _figure(one.metric, one.after)
        rows.append(
            (
                name,
                *((one.said_of,) if len(of) > 1 else ()),
                before if len(first) == 1 else f"{before} {one.first}",
                after if len(last) == 1 else f"{after} {one.last}",
                _figure(one.metric, one.difference, signed=True),
            )
        )
    header = (
        "arm",
        *(("measured",) if len(of) > 1 else ()),
        f"{own[0].first if len(first) == 1 else 'before'} [95%]",
        f"{own[0].last if len(last) == 1 else 'after'} [95%]",
        "difference [95%]",
    )
    caption = f"In the course of training: {own[0].said_of}" if len(of) == 1 else "In the course of training"
    seeds = "; ".join(f"{name}: {count(one.difference.seeds, 'run')}" for name, one in changes.items())
    return Table(caption, header, rows, texts=(1,) if len(of) > 1 else (), note=seeds)


def _figure(metric: str, estimate: CrossedEstimate, *, signed: bool = False) -> str:
    return with_interval(metric, {"value": estimate.value, "low": estimate.low, "high": estimate.high}, signed=signed)


def _change(arm: Arm, first: Sequence[Moment], last: Sequence[Moment]) -> MetricChange | None:
    evaluations = {f"{number} {one.evaluation.folder}": one.evaluation for number, one in enumerate([*first, *last])}
    metric = metric_of(None, evaluations)
    common = frozenset.intersection(*(frozenset(row.id for row in one.rows) for one in evaluations.values()))
    if not common:
        return None
    ids = sorted(common)
    before, after = (
        np.array([problem_values(one.evaluation, *metric, ids) for one in moments]) for moments in (first, last)
    )
    result, limits = last[0].evaluation.result, bounds(metric[0], *(one.result for one in evaluations.values()))
    samples = f" x {count(metric[1], 'sample')}" if metric[1] else ", greedy"
    return MetricChange(
        arm=arm.name,
        metric=metric[0],
        of=f"{result['benchmark']}, {result['split']}, {count(len(ids), 'problem')}{samples}",
        first=_when(one.when for one in first),
        last=_when(one.when for one in last),
        before=arm_mean(before, limits),
        after=arm_mean(after, limits),
        difference=cut(paired_crossed_interval(after, before), of_difference(limits)),
        untrained=tuple({one.evaluation.folder: one.evaluation for one in first if one.when == BASE}.values()),
    )


def _when(moments: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(moments))
    return distinct[0] if len(distinct) == 1 else " or ".join(sorted(distinct))


def first_and_last(run: Run, problems: list[str]) -> tuple[Moment, Moment] | None:
    """The first and the last held-out evaluation of training; None where there are no two."""
    every: list[Evaluation] = []
    with collecting(problems):
        every = held_out(run.dir)
    if len(every) < 2:
        return None
    first, final = (Moment(f"after {count(one.result['rollouts'], 'rollout')}", one) for one in (every[0], every[-1]))
    return first, final


def _with_base(run: Run, root: Path, problems: list[str]) -> tuple[Moment, Moment] | None:
    """The evaluations of the untrained model and of the run's newest checkpoint under the same settings."""
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
    return Moment(BASE, pairs[final.folder][0]), Moment(f"after {count(_trained(run, final), 'rollout')}", final)


def _same_model(first: str, second: str) -> bool:
    return first == second or Path(first).expanduser().resolve() == Path(second).expanduser().resolve()


def _trained(run: Run, evaluation: Evaluation) -> int:
    """The rollouts until the checkpoint that was evaluated, which need not be the last."""
    rows = whole_rows(read_record(run.dir, run.dir.metrics_path))
    ends = [row["rollout"] + 1 for row in rows if row.get("step") in evaluation.steps]
    return int(max(ends, default=run.manifest["rollout"]))


@dataclass(frozen=True)
class Budgets:
    """``table``: None where no budget gives one. ``without``: why a budget gives none, a line each."""

    table: Table | None
    without: tuple[str, ...]


def budgets(subject: ReportData) -> Budgets:
    """The difference of each arm to the baseline at the largest common budget, a row for each budget.

    Nothing where final checkpoints are not what is compared, or the runs have no held-out evaluations from training.
    """
    if subject.comparison is None or subject.request.match is not None:
        return Budgets(None, ())
    if not all(has_evaluation(run.dir.held_out_dir) for run in subject.readiness.runs):
        return Budgets(None, ())
    base = subject.comparison.scores.baseline
    asked = replace(subject.request, baseline=base, benchmark=None, where=(), power=None)
    found: dict[str, TaskComparison] = {}
    without: list[str] = []
    for budget in BUDGETS:
        try:
            found[budget] = compare_task(read_task(replace(asked, match=budget), subject.readiness.runs))
        except UserError as error:
            without.append(f"Not at equal {budget}: {' '.join(error.problems)}")
    return Budgets(_table(found, base) if found else None, tuple(without))


def _table(found: Mapping[str, TaskComparison], base: str) -> Table:
    first = next(iter(found.values()))
    read = first.scores
    arms = [row.arm for row, _ in first.others]
    rows = []
    for budget, one in found.items():
        own = {row.arm: row for row in one.rows}
        rows.append((f"{_amount(one.scores.end)} {budget}", *(_budget_cell(read.metric, own[arm]) for arm in arms)))
    samples = f" x {count(read.samples, 'sample')}" if read.samples else ", greedy"
    corrected = "p after Holm's correction within a budget. " if first.tested else ""
    return Table(
        f"At equal budget: difference to {base} [95%]",
        ("at", *arms),
        rows,
        note=f"{metric_name(read.metric).strip()} of the held-out evaluations in training ({read.settings['split']}, "
        f"{count(len(read.problems), 'problem')}{samples}), linear between them, at the most that all runs have; not "
        f"of the final checkpoints above. {corrected}`rlvr compare --match` has the rest.",
    )


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def _budget_cell(metric: str, row: ArmOnTask) -> str:
    assert row.contrast is not None
    one = row.contrast.difference
    shown = with_interval(metric, {"value": one.value, "low": one.low, "high": one.high}, signed=True)
    return shown if row.contrast.verdict == "single" else f"{shown}, p {p_text(row.contrast.p_holm)}"
