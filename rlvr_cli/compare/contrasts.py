"""Every arm against the baseline: means, differences, tests, wins and losses, cost, what it takes to see more; over
several tasks also their mean, and summaries of runs x tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

import numpy as np

from rlvr_cli.compare.curves import CurveRow, curve_rows
from rlvr_cli.compare.inputs import Inputs, TaskInputs
from rlvr_cli.compare.scores import arm_mean, cut, of_methods
from rlvr_cli.stats.clustered import CrossedEstimate, paired_crossed_interval, unpaired_crossed_interval
from rlvr_cli.stats.intervals import of_difference
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
from rlvr_cli.stats.power import detectable_difference, problems_needed, seeds_needed
from rlvr_cli.stats.scores import Outcomes, outcomes
from rlvr_cli.store.metrics import metric as declared
from rlvr_cli.store.spending import PARTS, TIMED, Spent, mean_spent

LEVEL = 0.05
# Of a performance profile.
THRESHOLDS = 60
# Percentage points that a comparison of shares is asked to see where nothing else is asked.
DEFAULT_DIFFERENCE = 0.02
ContrastVerdict = Literal["higher", "lower", "uncertain", "unseen", "unknown", "single"]


@dataclass(frozen=True)
class Needed:
    """What it takes to see a difference in 80% of repetitions of the whole comparison.

    To see is to be told `higher` or `lower`: p is below 5% over the number of comparisons, the least that Holm's
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
    """An arm less the baseline, over the same problems.

    Attributes:
        p_value: two-sided, after Holm's correction over all arms. Where it is below 0.05 the interval, which is of this
            arm alone, leaves out 0.
        verdict: `higher` or `lower`: p is below 0.05; `uncertain`: the interval leaves out 0 and p is not; `unseen`:
            the interval holds 0; `unknown`: a difference without an interval; `single`: an arm has one run, so that the
            difference is of these runs and there is neither p nor verdict on what made them.
    """

    difference: CrossedEstimate
    p_value: float | None
    permutation: PermutationTest | None
    outcomes: Outcomes
    needed: Needed | None
    verdict: ContrastVerdict


@dataclass(frozen=True)
class ArmResult:
    """One arm; ``contrast`` is None for the baseline. ``cost``: each part of what was spent over the baseline's.

    ``seconds``: of what is timed, the least and the greatest of that ratio over pairs of runs; None with one pair.
    """

    arm: str
    mean: CrossedEstimate
    contrast: Contrast | None
    spent: Spent
    cost: Mapping[str, float | None]
    seconds: Mapping[str, tuple[float, float] | None]

    @property
    def effect(self) -> float:
        """The difference to the baseline."""
        return self.contrast.difference.value if self.contrast else 0.0


@dataclass(frozen=True)
class TaskComparison:
    """The rows by their effect, the largest first; ``curves`` in their order, of a matched comparison alone.

    ``among``: the comparisons that p-values are corrected for, where there are others than these.
    """

    inputs: TaskInputs
    rows: tuple[ArmResult, ...]
    curves: tuple[CurveRow, ...]
    among: int | None = None

    @property
    def baseline(self) -> ArmResult:
        return next(row for row in self.rows if row.contrast is None)

    @property
    def tested(self) -> bool:
        """Whether a difference has a p; none has with one run an arm."""
        return any(row.contrast is not None and row.contrast.verdict != "single" for row in self.rows)

    @property
    def family(self) -> int:
        """Comparisons that p-values are corrected for."""
        return len(self.rows) - 1 if self.among is None else self.among


def compare_task(inputs: TaskInputs) -> TaskComparison:
    """The arms on one task."""
    request, baseline = inputs.request, inputs.baseline
    scores = inputs.scores()
    by_run = inputs.spent()
    spent = {name: mean_spent(runs) for name, runs in by_run.items()}
    bounds = inputs.by_run.bounds
    against = {
        name: replace(one, difference=cut(one.difference, of_difference(bounds)))
        for name, one in contrasts(scores, baseline, paired=inputs.paired, target=_target(inputs)).items()
    }
    rows = [
        ArmResult(
            arm=name,
            mean=arm_mean(scores[name], bounds),
            contrast=against.get(name),
            spent=spent[name],
            cost={part: _ratio(spent[name].of(part), spent[baseline].of(part)) for part in PARTS},
            seconds={part: _spread(by_run[name], by_run[baseline], part) for part in TIMED},
        )
        for name in scores
    ]
    rows.sort(key=lambda row: (-row.effect, row.arm))
    curves = curve_rows(inputs, [row.arm for row in rows]) if request.match else ()
    return TaskComparison(inputs, tuple(rows), curves)


def _spread(own: Sequence[Spent], base: Sequence[Spent], part: str) -> tuple[float, float] | None:
    least, most = min(one.of(part) for one in base), max(one.of(part) for one in base)
    if len(own) + len(base) < 3 or least <= 0:
        return None
    return min(one.of(part) for one in own) / most, max(one.of(part) for one in own) / least


def among(comparison: TaskComparison, p_values: Mapping[str, float | None], family: int) -> TaskComparison:
    """The comparison as one of several, with ``p_values`` (by the arm) that were corrected for ``family`` of them."""
    inputs = comparison.inputs

    def judged(arm: str, contrast: Contrast) -> Contrast:
        p_value, difference = p_values[arm], contrast.difference
        needed = _needed(difference, _target(inputs), LEVEL / family, paired=inputs.paired)
        return replace(contrast, p_value=p_value, needed=needed, verdict=verdict_of(difference, p_value))

    rows = [
        row if row.contrast is None else replace(row, contrast=judged(row.arm, row.contrast)) for row in comparison.rows
    ]
    return replace(comparison, rows=tuple(rows), among=family)


def corrected_p(differences: Sequence[CrossedEstimate]) -> list[float | None]:
    """The p of each after Holm's correction over all, in their order; None for a difference without one.

    Such a difference is one of the family all the same: what is tested depends on the data.
    """
    single = [1.0 if one.p_value is None else one.p_value for one in differences]
    return [None if one.p_value is None else p for one, p in zip(differences, holm(single), strict=True)]


def contrasts(
    scores: Mapping[str, np.ndarray], baseline: str, *, paired: bool = True, target: float | None = None
) -> dict[str, Contrast]:
    """Every other arm less the baseline.

    Args:
        scores: [replicates, problems] of each arm; the columns are the same problems, and the rows the same replicates
            where ``paired``.
        target: the difference that ``needed`` is about.
    """
    names = [name for name in scores if name != baseline]
    interval = paired_crossed_interval if paired else unpaired_crossed_interval
    differences = {name: of_methods(interval(scores[name], scores[baseline])) for name in names}
    corrected = dict(zip(names, corrected_p([differences[name] for name in names]), strict=True))
    return {
        name: Contrast(
            difference=differences[name],
            p_value=corrected[name],
            permutation=permutation_test(scores[name], scores[baseline]),
            outcomes=outcomes(scores[name], scores[baseline]),
            needed=_needed(differences[name], target, LEVEL / len(names), paired=paired),
            verdict=verdict_of(differences[name], corrected[name]),
        )
        for name in names
    }


def _target(inputs: TaskInputs) -> float | None:
    """The difference that is to be seen: the one that is asked for, else of shares two points."""
    return inputs.request.power or (DEFAULT_DIFFERENCE if declared(inputs.by_run.metric).share else None)


def verdict_of(difference: CrossedEstimate, corrected: float | None) -> ContrastVerdict:
    """What a difference comes to, by its interval and its corrected p."""
    if not difference.spread_of_runs:
        return "single"
    if corrected is None:
        return "unknown"
    if corrected < LEVEL:
        return "higher" if difference.value > 0 else "lower"
    if difference.low is None or difference.high is None:
        return "unseen"
    return "uncertain" if difference.low > 0 or difference.high < 0 else "unseen"


def _needed(difference: CrossedEstimate, target: float | None, alpha: float, *, paired: bool) -> Needed | None:
    """None where the spread between runs or problems is not known: with one of them, or values that do not vary."""
    components, seeds, problems = difference.components, difference.seeds, difference.problems
    if components is None or difference.low is None or seeds < 2 or problems < 2:
        return None
    return Needed(
        difference=target,
        seeds=None if target is None else seeds_needed(components, target, problems, alpha=alpha, paired=paired),
        problems=None if target is None else problems_needed(components, target, seeds, alpha=alpha, paired=paired),
        detectable=detectable_difference(components, seeds, problems, alpha=alpha, paired=paired),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True)
class MeanContrast:
    """An arm less the baseline, over all tasks.

    Attributes:
        difference: of the means over tasks. p_value: after Holm's correction over all arms, tasks and their mean.
        verdict: of the mean, as ``Contrast.verdict``.
        outcomes: on how many tasks the arm's mean is above, at and below the baseline's.
        improvement: the chance that a run of the arm is above one of the baseline; None with one run an arm.
    """

    difference: CrossedEstimate
    p_value: float | None
    verdict: ContrastVerdict
    outcomes: Outcomes
    improvement: Aggregate | None


@dataclass(frozen=True)
class ArmMean:
    """One arm over all tasks; ``contrast`` is None for the baseline.

    Attributes:
        scores: [runs, tasks] the mean over problems. mean: of the tasks' means. middle: the interquartile mean of them.
        profile: the share of runs x tasks above each threshold, the thresholds those of all arms.
    """

    arm: str
    scores: np.ndarray
    mean: CrossedEstimate
    middle: Aggregate
    profile: Profile
    contrast: MeanContrast | None

    @property
    def effect(self) -> float:
        """The difference to the baseline."""
        return self.contrast.difference.value if self.contrast else 0.0


@dataclass(frozen=True)
class Comparison:
    """The same arms on one or several tasks.

    Attributes:
        tasks: the comparison on each; p-values are corrected for ``family`` of them, all tasks' and those of the mean.
        rows: over all tasks, by their effect, the largest first; none with one task.
    """

    inputs: Inputs
    tasks: Mapping[str, TaskComparison]
    rows: tuple[ArmMean, ...]
    family: int

    @property
    def tested(self) -> bool:
        """As of a task."""
        return any(one.tested for one in self.tasks.values())

    @property
    def only(self) -> TaskComparison | None:
        """The comparison of the one task; None with several."""
        return next(iter(self.tasks.values())) if len(self.tasks) == 1 else None

    @property
    def metric(self) -> str:
        """The metric; of tasks with different numbers of samples the first one's."""
        return self.inputs.first.by_run.metric


def compare_arms(inputs: Inputs) -> Comparison:
    """The comparison of what was read."""
    tasks = {name: compare_task(one) for name, one in inputs.tasks.items()}
    if len(tasks) == 1:
        return Comparison(inputs, tasks, (), next(iter(tasks.values())).family)
    baseline, together = inputs.baseline, inputs.together
    tables = inputs.scores()
    interval = paired_tasks_interval if inputs.first.paired else unpaired_tasks_interval
    names = [name for name in tables if name != baseline]
    means = {name: of_methods(interval(tables[name], tables[baseline], together=together)) for name in names}
    # One family: whoever looks at every task and at the mean has as many chances to be wrong.
    family = {(None, name): means[name] for name in names} | {
        (task, row.arm): row.contrast.difference
        for task, comparison in tasks.items()
        for row in comparison.rows
        if row.contrast
    }
    p_values = dict(zip(family, corrected_p(list(family.values())), strict=True))
    limits = [one.by_run.bounds for one in inputs.tasks.values()]
    bounds = fmean(low for low, _ in limits), fmean(high for _, high in limits)
    runs = {name: np.stack([table.mean(1) for table in tables[name]], axis=1) for name in tables}
    thresholds = _thresholds(runs)
    rows = []
    for name, scores in runs.items():
        contrast = None
        if name != baseline:
            difference, p_value = cut(means[name], of_difference(bounds)), p_values[None, name]
            base = runs[baseline]
            contrast = MeanContrast(
                difference=difference,
                p_value=p_value,
                verdict=verdict_of(difference, p_value),
                outcomes=outcomes(scores, base),
                improvement=probability_of_improvement(scores, base, together=together)
                if difference.spread_of_runs
                else None,
            )
        rows.append(
            ArmMean(
                arm=name,
                scores=scores,
                mean=cut(of_methods(tasks_interval(tables[name], together=together)), bounds),
                middle=iqm_interval(scores, together=together),
                profile=performance_profile(scores, thresholds, together=together),
                contrast=contrast,
            )
        )
    rows.sort(key=lambda row: (-row.effect, row.arm))
    judged = {
        task: among(comparison, {name: p_values[task, name] for name in names}, len(family))
        for task, comparison in tasks.items()
    }
    return Comparison(inputs, judged, tuple(rows), len(family))


def _thresholds(runs: Mapping[str, np.ndarray]) -> np.ndarray:
    """From just below the lowest score of any run and task, which all are above, to the highest, which none is."""
    lowest, highest = min(scores.min() for scores in runs.values()), max(scores.max() for scores in runs.values())
    scores = np.linspace(lowest, max(highest, lowest + 1e-3), THRESHOLDS - 1)
    return np.concatenate([[2 * scores[0] - scores[1]], scores])
