"""Compare every arm with the baseline: means, differences, tests, wins and losses, costs, and required sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

import numpy as np

from rlvr_cli.compare.scores import RunScores, Scores, TaskScores, score_table
from rlvr_cli.stats.clustered import CrossedEstimate, crossed_difference, crossed_interval
from rlvr_cli.stats.curves import Curve
from rlvr_cli.stats.intervals import Bounds, difference_bounds
from rlvr_cli.stats.permutation import PermutationTest, holm, permutation_test
from rlvr_cli.stats.power import PlannedTest
from rlvr_cli.stats.scores import Array, Outcomes, count_outcomes
from rlvr_cli.store.metrics import metric as declared
from rlvr_cli.store.training import COSTS, TIMED, Spent

LEVEL = 0.05
# Percentage points that a comparison of shares should detect where the user names no difference.
DEFAULT_DIFFERENCE = 0.02
Verdict = Literal["higher", "lower", "uncertain", "unseen", "unknown", "single"]


@dataclass(frozen=True)
class Needed:
    """The seeds and problems required to detect a difference with power 80%.

    The significance level is 5% over the number of comparisons, the strictest of Holm's correction.

    Attributes:
        difference: to detect, in the metric's unit; None = not set.
        seeds: with the current problems; problems: with the current seeds; None if no number suffices.
        both: seeds and problems with the smallest product, if neither alone suffices.
        detectable: the smallest difference that the current seeds and problems detect.
    """

    difference: float | None
    seeds: int | None
    problems: int | None
    detectable: float
    both: tuple[int, int] | None = None


@dataclass(frozen=True)
class Contrast:
    """An arm minus the baseline or a control, over the same problems; over several tasks, of the means over tasks.

    Attributes:
        base: the baseline or the control.
        p_holm: two-sided, with Holm's correction over the ``family`` comparisons of arms with the baseline, or of arms
            with controls. The interval is uncorrected: it excludes 0 if p_holm < 0.05.
        outcomes: the numbers of problems (over tasks: tasks) on which the arm wins, ties and loses.
        verdict: `higher` or `lower`: p_holm < 0.05; `uncertain`: the interval excludes 0, but p_holm >= 0.05; `unseen`:
            the interval includes 0; `unknown`: no interval; `single`: an arm has one run, so the difference is of these
            runs, without a p-value and a verdict on methods.
        needed: None over tasks. permutation: None unless requested.
    """

    base: str
    difference: CrossedEstimate
    p_holm: float | None
    family: int
    outcomes: Outcomes
    verdict: Verdict
    needed: Needed | None = None
    permutation: PermutationTest | None = None


@dataclass(frozen=True)
class ArmCurve:
    """One arm's learning curve up to the common budget.

    Attributes:
        area: its mean height over the common budget. difference: to the baseline's; None for the baseline.
        level: of the metric. reached: the budget at which each run first reached it, or None.
    """

    area: CrossedEstimate
    difference: CrossedEstimate | None
    level: float
    reached: tuple[float | None, ...]


@dataclass(frozen=True)
class ArmResult:
    """One arm: its mean over runs and problems, or over tasks.

    Attributes:
        contrast: to the baseline; None for the baseline itself.
        above: to the best of its controls; None without any.
    """

    arm: str
    mean: CrossedEstimate
    contrast: Contrast | None
    above: Contrast | None

    @property
    def effect(self) -> float:
        return self.contrast.difference.value if self.contrast else 0.0

    @property
    def verdict(self) -> str:
        return self.contrast.verdict if self.contrast else "baseline"


@dataclass(frozen=True)
class ArmOnTask(ArmResult):
    """One arm on one task.

    Attributes:
        runs: the compared runs. spent: the mean costs of a run. cost: their ratios to the baseline's.
        seconds: the range of the ratio over pairs of runs, for timed costs; None with one pair.
        curve: of a matched comparison.
    """

    runs: tuple[RunScores, ...]
    spent: Spent
    cost: Mapping[str, float | None]
    seconds: Mapping[str, tuple[float, float] | None]
    curve: ArmCurve | None


@dataclass(frozen=True)
class ArmOverTasks(ArmResult):
    """One arm over all tasks; ``scores``: [runs, tasks] the mean over problems."""

    scores: Array


@dataclass(frozen=True)
class TaskComparison:
    """The arms on one task, the largest effect first.

    ``family``, ``control_family``: the numbers of comparisons with the baseline and with controls.
    """

    scores: TaskScores
    rows: tuple[ArmOnTask, ...]
    family: int
    control_family: int

    @property
    def baseline(self) -> ArmOnTask:
        return next(row for row in self.rows if row.contrast is None)

    @property
    def others(self) -> list[tuple[ArmOnTask, Contrast]]:
        return [(row, row.contrast) for row in self.rows if row.contrast is not None]

    @property
    def tested(self) -> bool:
        """Return whether any difference has a p-value, which takes two runs per arm."""
        return any(contrast.verdict != "single" for _, contrast in self.others)


@dataclass(frozen=True)
class Comparison:
    """The same arms on one or several tasks.

    Attributes:
        tasks: the comparison on each. family, control_family: the numbers of comparisons with the baseline and with
            controls, on all tasks and on their mean.
        rows: the arms over all tasks, the largest effect first; none with one task.
    """

    scores: Scores
    tasks: Mapping[str, TaskComparison]
    rows: tuple[ArmOverTasks, ...]
    family: int
    control_family: int

    @property
    def first(self) -> TaskComparison:
        """Return the first task, for properties that all share."""
        return next(iter(self.tasks.values()))

    @property
    def tested(self) -> bool:
        return any(comparison.tested for comparison in self.tasks.values())

    @property
    def only(self) -> TaskComparison | None:
        return self.first if len(self.tasks) == 1 else None

    @property
    def metric(self) -> str:
        """Return the metric; that of the first task if numbers of samples differ."""
        return self.scores.first.metric


# The scores of an arm and of the baseline or a control on one task, [runs, problems] of the same problems.
Pair = tuple[Array, Array]
# The mean over tasks, where a task is named.
_MEAN = ""


def compare_task(scores: TaskScores) -> TaskComparison:
    return compare_arms(Scores(scores.request, {"": scores}, scores.notes)).first


def compare_arms(scores: Scores) -> Comparison:
    """Compare every arm with the baseline and its controls, on each task and on the mean over several.

    The comparisons with the baseline are one family of tests, those with controls another. A control's difference to
    the baseline is the baseline's to that control, and counts in the second alone.
    """
    tasks, first, base = scores.tasks, scores.first, scores.baseline
    scopes = {name: [task] for name, task in tasks.items()} | ({_MEAN: [*tasks.values()]} if len(tasks) > 1 else {})
    pairs = {
        (scope, arm, other): [
            (score_table(runs), score_table(others)) for runs, others in (task.pair(arm, other) for task in compared)
        ]
        for scope, compared in scopes.items()
        for arm in first.arms
        for other in dict.fromkeys((base, *first.controls.get(arm, ())))
        if all(task.pair(arm, other)[0] for task in compared)
    }
    estimates = {
        key: difference(pair, paired=first.paired, together=scores.together and len(pair) > 1)
        for key, pair in pairs.items()
        if key[1] != key[2]
    }
    of_base = first.controls.get(base, ())
    main = [key for key in estimates if key[2] == base and key[1] not in of_base]
    others = [key for key in estimates if key[2] != base]
    p_values = {
        key: (p, len(family))
        for family in (main, others)
        for key, p in zip(family, correct_p_values([estimates[key] for key in family]), strict=True)
    }
    p_values |= {(scope, arm, base): p for (scope, other, arm), p in p_values.items() if other == base}
    contrasts = {
        key: _contrast(scopes[key[0]], pairs[key], key[2], estimate, *p_values[key])
        for key, estimate in estimates.items()
    }
    better = declared(first.metric).higher_is_better

    def contrasts_of(scope: str, arm: str) -> tuple[Contrast | None, Contrast | None]:
        """Return the contrasts to the baseline, and to the control with the least favourable difference."""
        keys = [(scope, arm, control) for control in first.controls.get(arm, ()) if better is not None]
        above = [contrasts[key] for key in keys if key in contrasts]
        least = min(above, key=lambda contrast: contrast.difference.value * (1 if better else -1), default=None)
        return contrasts.get((scope, arm, base)), least

    compared = {}
    for name, task in tasks.items():
        curves = _curves(task) if task.request.match else {}
        rows = []
        for arm in task.arms:
            mean, runs = arm_mean(pairs[name, arm, base][0][0], bounds=task.bounds), tuple(task.pair(arm)[0])
            spent, cost, seconds = _costs(*task.pair(arm))
            rows.append(ArmOnTask(arm, mean, *contrasts_of(name, arm), runs, spent, cost, seconds, curves.get(arm)))
        compared[name] = TaskComparison(task, tuple(sorted(rows, key=_by_effect)), len(main), len(others))
    over = []
    for arm in first.arms if len(tasks) > 1 else ():
        tables = [table for table, _ in pairs[_MEAN, arm, base]]
        mean = arm_mean(*tables, bounds=_bounds(scopes[_MEAN]), together=scores.together)
        over.append(ArmOverTasks(arm, mean, *contrasts_of(_MEAN, arm), _run_means(tables)))
    return Comparison(scores, compared, tuple(sorted(over, key=_by_effect)), len(main), len(others))


def _run_means(tables: Sequence[Array]) -> Array:
    """Return [runs, tasks] the means over the problems of each task."""
    return np.stack([values.mean(1) for values in tables], axis=1)


def _bounds(tasks: Sequence[TaskScores]) -> Bounds:
    """Return the bounds of a mean over ``tasks``."""
    return fmean(task.bounds[0] for task in tasks), fmean(task.bounds[1] for task in tasks)


def _by_effect(row: ArmResult) -> tuple[float, str]:
    return -row.effect, row.arm


def difference(pairs: Sequence[Pair], *, paired: bool, together: bool = False) -> CrossedEstimate:
    """Estimate an arm minus the baseline from a pair of tables per task.

    Without the p-value of one run per arm, which is about their weights and not about methods.
    """
    arm, base = zip(*pairs, strict=True)
    estimate = crossed_difference(arm, base, paired=paired, together=together)
    return estimate if estimate.spread_of_runs else replace(estimate, p_value=None)


def correct_p_values(differences: Sequence[CrossedEstimate]) -> list[float | None]:
    """Return the p-values after Holm's correction, in order; None without one.

    Differences without a p-value count as members of the family, as it must not depend on the data.
    """
    single = [1.0 if estimate.p_value is None else estimate.p_value for estimate in differences]
    corrected = zip(differences, holm(single), strict=True)
    return [None if estimate.p_value is None else p for estimate, p in corrected]


def _contrast(
    tasks: Sequence[TaskScores],
    pairs: Sequence[Pair],
    base: str,
    estimate: CrossedEstimate,
    p_holm: float | None,
    family: int,
) -> Contrast:
    change, verdict = bounded(estimate, difference_bounds(_bounds(tasks))), verdict_of(estimate, p_holm)
    if len(tasks) > 1:
        outcomes = count_outcomes(*map(_run_means, zip(*pairs, strict=True)))
        return Contrast(base, change, p_holm, family, outcomes, verdict)
    task, request = tasks[0], tasks[0].request
    target = request.power or (DEFAULT_DIFFERENCE if declared(task.metric).share else None)
    return Contrast(
        base,
        change,
        p_holm,
        family,
        outcomes=count_outcomes(*pairs[0]),
        verdict=verdict,
        needed=needed(estimate, target, LEVEL / family, paired=task.paired),
        permutation=permutation_test(*pairs[0]) if request.permutation else None,
    )


def arm_mean(*tables: Array, bounds: Bounds, together: bool = False) -> CrossedEstimate:
    """Estimate the mean of scores, a table [runs, problems] per task, with its interval clipped to ``bounds``."""
    return bounded(crossed_interval(*tables, together=together, tested=False), bounds)


def bounded(estimate: CrossedEstimate, bounds: Bounds) -> CrossedEstimate:
    """Clip the interval to ``bounds``, the range of possible means."""
    if estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(bounds[0], estimate.low), high=min(bounds[1], estimate.high))


def verdict_of(estimate: CrossedEstimate, p_holm: float | None) -> Verdict:
    """Return the verdict on a difference, by its interval and corrected p-value."""
    if not estimate.spread_of_runs:
        return "single"
    if p_holm is None:
        return "unknown"
    if p_holm < LEVEL:
        return "higher" if estimate.value > 0 else "lower"
    if estimate.low is None or estimate.high is None:
        return "unseen"
    return "uncertain" if estimate.low > 0 or estimate.high < 0 else "unseen"


def needed(estimate: CrossedEstimate, target: float | None, alpha: float, *, paired: bool) -> Needed | None:
    """Return the sizes required to detect ``target``; None if a variance component is unknown."""
    components, seeds, problems = estimate.components, estimate.seeds, estimate.problems
    if components is None or estimate.low is None or seeds < 2 or problems < 2:
        return None
    test = PlannedTest(components, paired, alpha)
    detectable = test.detectable_difference(seeds, problems)
    if target is None:
        return Needed(None, None, None, detectable)
    more_seeds, more_problems = test.required_seeds(target, problems), test.required_problems(target, seeds)
    both = test.required_sizes(target, seeds, problems) if more_seeds is None and more_problems is None else None
    return Needed(target, more_seeds, more_problems, detectable, both)


def _costs(
    runs: Sequence[RunScores], base: Sequence[RunScores]
) -> tuple[Spent, dict[str, float | None], dict[str, tuple[float, float] | None]]:
    """Return the mean costs of a run, their ratios to the baseline's, and the ranges of the ratios of timed costs."""
    spent, of_base = ({cost: fmean(run.spent[cost] for run in every) for cost in COSTS} for every in (runs, base))
    ratios = {cost: spent[cost] / of_base[cost] if of_base[cost] else None for cost in COSTS}
    ranges: dict[str, tuple[float, float] | None] = {}
    for cost in TIMED:
        values, base_values = [run.spent[cost] for run in runs], [run.spent[cost] for run in base]
        several = len(values) + len(base_values) > 2 and min(base_values) > 0
        ranges[cost] = (min(values) / max(base_values), max(values) / min(base_values)) if several else None
    return spent, ratios, ranges


def _curves(scores: TaskScores) -> dict[str, ArmCurve]:
    change, level = difference_bounds(scores.bounds), scores.request.level
    if level is None:
        level = float(np.mean([run.values for run in scores.arms[scores.baseline].values()]))
    curves = {}
    for arm in scores.arms:
        own, base = scores.pair(arm)
        pair = _areas(scores, own), _areas(scores, base)
        curves[arm] = ArmCurve(
            area=arm_mean(pair[0], bounds=scores.bounds),
            difference=None if arm == scores.baseline else bounded(difference([pair], paired=scores.paired), change),
            level=level,
            reached=tuple(_until(run, scores.end).first_reaching(level) for run in own),
        )
    return curves


def _areas(scores: TaskScores, runs: Sequence[RunScores]) -> Array:
    """Return the areas, [runs, problems]; linear, so that their mean over problems is the area of the mean curve."""
    return np.stack([_until(run, scores.end).between(scores.start, scores.end).area() for run in runs])


def _until(run: RunScores, end: float) -> Curve:
    assert run.curve is not None
    return run.curve.between(float(run.curve.x[0]), end)
