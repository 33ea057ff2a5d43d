"""Every arm against the baseline: means, differences, tests, wins and losses, cost, what it takes to see more; over
several tasks also their mean, and summaries of runs x tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

import numpy as np

from rlvr_cli.compare.scores import RunScores, Scores, TaskScores, table
from rlvr_cli.stats.clustered import (
    CrossedEstimate,
    crossed_interval,
    paired_crossed_interval,
    unpaired_crossed_interval,
)
from rlvr_cli.stats.curves import Curve
from rlvr_cli.stats.intervals import Bounds, of_difference
from rlvr_cli.stats.over_tasks import (
    Aggregate,
    Profile,
    iqm_interval,
    paired_tasks_interval,
    performance_profile,
    probability_of_improvement,
    tasks_interval,
    unpaired_tasks_interval,
)
from rlvr_cli.stats.permutation import PermutationTest, holm, permutation_test
from rlvr_cli.stats.power import PlannedTest
from rlvr_cli.stats.scores import Array, Outcomes, outcomes
from rlvr_cli.store.metrics import metric as declared
from rlvr_cli.store.training import COSTS, TIMED, Spent

LEVEL = 0.05
# Of a performance profile.
THRESHOLDS = 60
# Percentage points that a comparison of shares is asked to see where nothing else is asked.
DEFAULT_DIFFERENCE = 0.02
# Of a learning curve: its height at the common budget, at its best evaluation, and on average.
SUMMARIES = ("final", "best", "area")
Verdict = Literal["higher", "lower", "uncertain", "unseen", "unknown", "single"]


@dataclass(frozen=True)
class Needed:
    """What it takes to see a difference in 80% of repetitions of the whole comparison.

    To see is to find it `higher` or `lower`: p is below 5% over the number of comparisons, the least that Holm's
    correction grants each.

    Attributes:
        difference: that is to be seen, in the metric's own unit; None where none is asked for.
        seeds: with the problems there are; problems: with the seeds there are; None where no number will do.
        detectable: the smallest difference that the seeds and problems there are would show.
    """

    difference: float | None
    seeds: int | None
    problems: int | None
    detectable: float


@dataclass(frozen=True)
class Contrast:
    """An arm less the baseline, over the same problems; over tasks, of the means over tasks.

    Attributes:
        p_holm: two-sided, after Holm's correction over all comparisons. Where it is below 0.05 the interval, which is
            of this arm alone, leaves out 0.
        outcomes: on how many problems (over tasks: tasks) the arm's mean is above, at and below the baseline's.
        verdict: `higher` or `lower`: p is below 0.05; `uncertain`: the interval leaves out 0 and p is not; `unseen`:
            the interval holds 0; `unknown`: a difference without an interval; `single`: an arm has one run, so that the
            difference is of these runs and there is neither p nor verdict on what made them.
        needed: None over tasks. permutation: where it is asked for.
        probability_of_improvement: over tasks, that a run of the arm is above one of the baseline; None with one run.
    """

    difference: CrossedEstimate
    p_holm: float | None
    outcomes: Outcomes
    verdict: Verdict
    needed: Needed | None = None
    permutation: PermutationTest | None = None
    probability_of_improvement: Aggregate | None = None


@dataclass(frozen=True)
class ArmCurves:
    """One arm's learning curves.

    Attributes:
        values, differences: of SUMMARIES; differences to the baseline, None for the baseline itself.
        level: of the metric. reached: the budget at which each run first had it; None for a run that did not.
    """

    values: Mapping[str, CrossedEstimate]
    differences: Mapping[str, CrossedEstimate] | None
    level: float
    reached: tuple[float | None, ...]


@dataclass(frozen=True)
class ArmResult:
    """One arm: its mean over runs and problems, or over tasks; ``contrast`` is None for the baseline."""

    arm: str
    mean: CrossedEstimate
    contrast: Contrast | None

    @property
    def effect(self) -> float:
        """Return the difference to the baseline."""
        return self.contrast.difference.value if self.contrast else 0.0

    @property
    def verdict(self) -> str:
        """Return that of the contrast; `baseline` of the baseline."""
        return self.contrast.verdict if self.contrast else "baseline"


@dataclass(frozen=True)
class ArmOnTask(ArmResult):
    """One arm on one task.

    Attributes:
        runs: that are compared. spent: by a run, on average. cost: each part of it over the baseline's.
        seconds: of what is timed, the least and the greatest of that ratio over pairs of runs; None with one pair.
        curves: of a matched comparison.
    """

    runs: tuple[RunScores, ...]
    spent: Spent
    cost: Mapping[str, float | None]
    seconds: Mapping[str, tuple[float, float] | None]
    curves: ArmCurves | None


@dataclass(frozen=True)
class ArmOverTasks(ArmResult):
    """One arm over all tasks.

    Attributes:
        scores: [runs, tasks] the mean over problems. iqm: the interquartile mean of them.
        profile: the share of runs x tasks above each threshold, the thresholds those of all arms.
    """

    scores: Array
    iqm: Aggregate
    profile: Profile


@dataclass(frozen=True)
class TaskComparison:
    """The arms on one task, by their effect, the largest first; p-values are corrected for ``family`` comparisons."""

    scores: TaskScores
    rows: tuple[ArmOnTask, ...]
    family: int

    @property
    def baseline(self) -> ArmOnTask:
        """Return the baseline's row."""
        return next(row for row in self.rows if row.contrast is None)

    @property
    def others(self) -> list[tuple[ArmOnTask, Contrast]]:
        """Return the rows of all other arms with their contrasts."""
        return [(row, row.contrast) for row in self.rows if row.contrast is not None]

    @property
    def tested(self) -> bool:
        """Return whether a difference has a p; none has with one run an arm."""
        return any(contrast.verdict != "single" for _, contrast in self.others)


@dataclass(frozen=True)
class Comparison:
    """The same arms on one or several tasks.

    Attributes:
        tasks: the comparison on each; p-values are corrected for ``family`` of them, all tasks' and those of the mean.
        rows: over all tasks, by their effect, the largest first; none with one task.
    """

    scores: Scores
    tasks: Mapping[str, TaskComparison]
    rows: tuple[ArmOverTasks, ...]
    family: int

    @property
    def first(self) -> TaskComparison:
        """Return one of the tasks, for what all share."""
        return next(iter(self.tasks.values()))

    @property
    def tested(self) -> bool:
        """Return whether a difference on any task has a p."""
        return any(comparison.tested for comparison in self.tasks.values())

    @property
    def only(self) -> TaskComparison | None:
        """Return the comparison of the one task; None with several."""
        return self.first if len(self.tasks) == 1 else None

    @property
    def metric(self) -> str:
        """Return the metric; of tasks with different numbers of samples the first one's."""
        return self.scores.first.metric


def compare_task(scores: TaskScores) -> TaskComparison:
    """Return the arms on one task."""
    request, baseline = scores.request, scores.baseline
    pairs = {name: scores.pair(name) for name in scores.arms}
    tables = {name: (table(own), table(base)) for name, (own, base) in pairs.items() if name != baseline}
    by_arm = contrasts(tables, paired=scores.paired, target=_target(scores), permutation=request.permutation)
    curves = _curves(scores, pairs) if request.match else {}
    rows = []
    for name, (runs, base) in pairs.items():
        contrast, spent = by_arm.get(name), _mean_spent(runs)
        of_base = _mean_spent(base)
        if contrast is not None:
            difference = cut(contrast.difference, of_difference(scores.bounds))
            contrast = replace(contrast, difference=difference)
        rows.append(
            ArmOnTask(
                arm=name,
                mean=arm_mean(table(runs), scores.bounds),
                contrast=contrast,
                runs=tuple(runs),
                spent=spent,
                cost={cost: spent[cost] / of_base[cost] if of_base[cost] else None for cost in COSTS},
                seconds={cost: _spread(runs, base, cost) for cost in TIMED},
                curves=curves.get(name),
            )
        )
    rows.sort(key=lambda row: (-row.effect, row.arm))
    return TaskComparison(scores, tuple(rows), len(rows) - 1)


def _mean_spent(runs: Sequence[RunScores]) -> dict[str, float]:
    return {cost: sum(run.spent[cost] for run in runs) / len(runs) for cost in COSTS}


def _spread(runs: Sequence[RunScores], base: Sequence[RunScores], cost: str) -> tuple[float, float] | None:
    least, most = min(run.spent[cost] for run in base), max(run.spent[cost] for run in base)
    if len(runs) + len(base) < 3 or least <= 0:
        return None
    return min(run.spent[cost] for run in runs) / most, max(run.spent[cost] for run in runs) / least


def contrasts(
    pairs: Mapping[str, tuple[Array, Array]],
    *,
    paired: bool = True,
    target: float | None = None,
    permutation: bool = False,
) -> dict[str, Contrast]:
    """Return every arm less the baseline.

    Args:
        pairs: by the arm's name, its scores and the baseline's, [replicates, problems]; the columns are the same
            problems, and the rows the same replicates where ``paired``.
        target: the difference that ``needed`` is about.
    """
    interval = paired_crossed_interval if paired else unpaired_crossed_interval
    differences = {name: of_methods(interval(own, base)) for name, (own, base) in pairs.items()}
    corrected = dict(zip(pairs, corrected_p(list(differences.values())), strict=True))
    return {
        name: Contrast(
            difference=differences[name],
            p_holm=corrected[name],
            outcomes=outcomes(own, base),
            verdict=verdict_of(differences[name], corrected[name]),
            needed=_needed(differences[name], target, LEVEL / len(pairs), paired=paired),
            permutation=permutation_test(own, base) if permutation else None,
        )
        for name, (own, base) in pairs.items()
    }


def corrected_p(differences: Sequence[CrossedEstimate]) -> list[float | None]:
    """Return the p of each after Holm's correction over all, in their order; None for a difference without one.

    Such a difference is one of the family all the same: what is tested depends on the data.
    """
    single = [1.0 if difference.p_value is None else difference.p_value for difference in differences]
    corrected = zip(differences, holm(single), strict=True)
    return [None if difference.p_value is None else p for difference, p in corrected]


def arm_mean(scores: Array, bounds: Bounds) -> CrossedEstimate:
    """Return the mean of scores [runs, problems], its interval cut where no mean can be: of shares at 0 and 1."""
    return cut(of_methods(crossed_interval(scores)), bounds)


def cut(estimate: CrossedEstimate, bounds: Bounds) -> CrossedEstimate:
    """Return the estimate with its interval cut at ``bounds``; it covers what it did."""
    if estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(bounds[0], estimate.low), high=min(bounds[1], estimate.high))


def of_methods(estimate: CrossedEstimate) -> CrossedEstimate:
    """Return the estimate without the p of one run an arm, which is about these weights and not what made them."""
    return estimate if estimate.spread_of_runs else replace(estimate, p_value=None)


def verdict_of(difference: CrossedEstimate, corrected: float | None) -> Verdict:
    """Return what a difference comes to, by its interval and its corrected p."""
    if not difference.spread_of_runs:
        return "single"
    if corrected is None:
        return "unknown"
    if corrected < LEVEL:
        return "higher" if difference.value > 0 else "lower"
    if difference.low is None or difference.high is None:
        return "unseen"
    return "uncertain" if difference.low > 0 or difference.high < 0 else "unseen"


def _target(scores: TaskScores) -> float | None:
    """Return the difference that is to be seen: the one that is asked for, else of shares two points."""
    return scores.request.power or (DEFAULT_DIFFERENCE if declared(scores.metric).share else None)


def _needed(difference: CrossedEstimate, target: float | None, alpha: float, *, paired: bool) -> Needed | None:
    """Return None where the spread between runs or problems is not known: one of them, or values that do not vary."""
    components, seeds, problems = difference.components, difference.seeds, difference.problems
    if components is None or difference.low is None or seeds < 2 or problems < 2:
        return None
    test = PlannedTest(components, paired, alpha)
    return Needed(
        difference=target,
        seeds=None if target is None else test.seeds(target, problems),
        problems=None if target is None else test.problems(target, seeds),
        detectable=test.detectable(seeds, problems),
    )


def _curves(
    scores: TaskScores, pairs: Mapping[str, tuple[Sequence[RunScores], Sequence[RunScores]]]
) -> dict[str, ArmCurves]:
    """Return the curves of a matched comparison, by the arm's name."""
    end, change = scores.end, of_difference(scores.bounds)
    interval = paired_crossed_interval if scores.paired else unpaired_crossed_interval
    tables = {name: tuple(_summaries(scores, runs) for runs in pair) for name, pair in pairs.items()}
    wanted = scores.request.level
    level = float(tables[scores.baseline][0]["final"].mean()) if wanted is None else wanted
    return {
        arm: ArmCurves(
            values={name: arm_mean(summaries[name], scores.bounds) for name in SUMMARIES},
            differences=None
            if arm == scores.baseline
            else {name: cut(of_methods(interval(summaries[name], base[name])), change) for name in SUMMARIES},
            level=level,
            reached=tuple(_until(run, end).first_at(level) for run in pairs[arm][0]),
        )
        for arm, (summaries, base) in tables.items()
    }


def _until(run: RunScores, end: float) -> Curve:
    assert run.curve is not None
    return run.curve.between(float(run.curve.x[0]), end)


def _summaries(scores: TaskScores, runs: Sequence[RunScores]) -> dict[str, Array]:
    """Return [runs, problems] of each summary.

    The best evaluation of a run is that of its mean over problems; its area begins where all curves do, and is that of
    the mean curve for the mean over problems, as it is linear.
    """
    curves = [_until(run, scores.end) for run in runs]
    return {
        "final": np.stack([curve.at(scores.end) for curve in curves]),
        "best": np.stack([curve.at(curve.best()) for curve in curves]),
        "area": np.stack([curve.between(scores.start, scores.end).area() for curve in curves]),
    }


def compare_arms(scores: Scores) -> Comparison:
    """Return the comparison of what was read."""
    tasks = {name: compare_task(task) for name, task in scores.tasks.items()}
    if len(tasks) == 1:
        return Comparison(scores, tasks, (), next(iter(tasks.values())).family)
    pairs = {name: [task.pair(name) for task in scores.tasks.values()] for name in scores.first.arms}
    tables = {
        name: ([table(runs) for runs, _ in of_tasks], [table(base) for _, base in of_tasks])
        for name, of_tasks in pairs.items()
    }
    interval = paired_tasks_interval if scores.first.paired else unpaired_tasks_interval
    means = {
        name: of_methods(interval(*both, together=scores.together))
        for name, both in tables.items()
        if name != scores.baseline
    }
    # One family: every task and the mean is one more chance to be wrong.
    family = {(None, name): mean for name, mean in means.items()} | {
        (task, row.arm): contrast.difference
        for task, comparison in tasks.items()
        for row, contrast in comparison.others
    }
    p_values = dict(zip(family, corrected_p(list(family.values())), strict=True))
    judged = {
        task: _as_one_of(comparison, {name: p_values[task, name] for name in means}, len(family))
        for task, comparison in tasks.items()
    }
    rows = _rows_over_tasks(scores, tables, means, {name: p_values[None, name] for name in means})
    return Comparison(scores, judged, tuple(sorted(rows, key=lambda row: (-row.effect, row.arm))), len(family))


def _rows_over_tasks(
    scores: Scores,
    tables: Mapping[str, tuple[Sequence[Array], Sequence[Array]]],
    means: Mapping[str, CrossedEstimate],
    p_values: Mapping[str, float | None],
) -> Iterator[ArmOverTasks]:
    """Yield the arms over all tasks.

    Args:
        tables: by the arm's name, its and the baseline's [runs, problems] of each task.
        means: differences of the means over tasks; p_values: the corrected ones.
    """
    together = scores.together
    limits = [task.bounds for task in scores.tasks.values()]
    bounds = fmean(low for low, _ in limits), fmean(high for _, high in limits)
    run_means = {name: (_run_means(of_arm), _run_means(base)) for name, (of_arm, base) in tables.items()}
    thresholds = _thresholds([of_arm for of_arm, _ in run_means.values()])
    for name, (of_arm, base) in run_means.items():
        contrast = None
        if name in means:
            difference, p_holm = cut(means[name], of_difference(bounds)), p_values[name]
            chance = probability_of_improvement(of_arm, base, together=together) if difference.spread_of_runs else None
            verdict = verdict_of(difference, p_holm)
            contrast = Contrast(difference, p_holm, outcomes(of_arm, base), verdict, probability_of_improvement=chance)
        yield ArmOverTasks(
            arm=name,
            mean=cut(of_methods(tasks_interval(tables[name][0], together=together)), bounds),
            contrast=contrast,
            scores=of_arm,
            iqm=iqm_interval(of_arm, together=together),
            profile=performance_profile(of_arm, thresholds, together=together),
        )


def _run_means(tables: Sequence[Array]) -> Array:
    """Return [runs, tasks], the mean over problems."""
    return np.stack([values.mean(1) for values in tables], axis=1)


def _as_one_of(comparison: TaskComparison, p_values: Mapping[str, float | None], family: int) -> TaskComparison:
    """Return the comparison as one of several, with ``p_values`` (by the arm) corrected for ``family`` of them."""
    scores = comparison.scores

    def judged(arm: str, contrast: Contrast) -> Contrast:
        p_holm, difference = p_values[arm], contrast.difference
        needed = _needed(difference, _target(scores), LEVEL / family, paired=scores.paired)
        return replace(contrast, p_holm=p_holm, needed=needed, verdict=verdict_of(difference, p_holm))

    rows = [
        row if row.contrast is None else replace(row, contrast=judged(row.arm, row.contrast)) for row in comparison.rows
    ]
    return replace(comparison, rows=tuple(rows), family=family)


def _thresholds(scores: Sequence[Array]) -> Array:
    """Return from just below the lowest score of any run and task, which all are above, to the highest."""
    lowest, highest = min(values.min() for values in scores), max(values.max() for values in scores)
    thresholds = np.linspace(lowest, max(highest, lowest + 1e-3), THRESHOLDS - 1)
    return np.concatenate([[2 * thresholds[0] - thresholds[1]], thresholds])
