"""Every arm against the baseline over several tasks: each task, their mean, and summaries of runs x tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlvr_cli.compare.contrasts import Comparison, Verdict, among, compare, corrected_p, verdict_of
from rlvr_cli.compare.means import possible, possible_mean
from rlvr_cli.compare.over import TasksMaterial
from rlvr_cli.stats.clustered import CrossedEstimate
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
from rlvr_cli.stats.scores import Outcomes, outcomes

THRESHOLDS = 60


@dataclass(frozen=True)
class TasksContrast:
    """An arm less the baseline, over all tasks.

    Attributes:
        difference: of the means over tasks. p_value: after Holm's correction over all arms, tasks and their mean.
        verdict: of the mean, as ``Contrast.verdict``.
        outcomes: on how many tasks the arm's mean is above, at and below the baseline's.
        improvement: the chance that a run of the arm is above one of the baseline.
    """

    difference: CrossedEstimate
    p_value: float | None
    verdict: Verdict
    outcomes: Outcomes
    improvement: Aggregate


@dataclass(frozen=True)
class TasksRow:
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
    contrast: TasksContrast | None

    @property
    def effect(self) -> float:
        """The difference to the baseline."""
        return self.contrast.difference.value if self.contrast else 0.0


@dataclass(frozen=True)
class TasksComparison:
    """``tasks``: the comparison on each, p-values corrected for all. ``rows``: by their effect, the largest first."""

    material: TasksMaterial
    tasks: Mapping[str, Comparison]
    rows: tuple[TasksRow, ...]
    family: int

    @property
    def metric(self) -> str:
        """The metric; of tasks with different numbers of samples the first one's."""
        return self.material.first.read.metric


def compare_tasks(material: TasksMaterial) -> TasksComparison:
    """The comparison of what was read."""
    baseline, together = material.baseline, material.together
    tasks = {name: compare(one) for name, one in material.tasks.items()}
    tables = material.scores()
    interval = paired_tasks_interval if material.first.paired else unpaired_tasks_interval
    names = [name for name in tables if name != baseline]
    means = {name: interval(tables[name], tables[baseline], together=together) for name in names}
    # One family: whoever looks at every task and at the mean has as many chances to be wrong.
    family = {(None, name): means[name] for name in names} | {
        (task, row.arm): row.contrast.difference
        for task, comparison in tasks.items()
        for row in comparison.rows
        if row.contrast
    }
    p_values = dict(zip(family, corrected_p(list(family.values())), strict=True))
    metric = material.first.read.metric
    runs = {name: np.stack([table.mean(1) for table in tables[name]], axis=1) for name in tables}
    thresholds = _thresholds(runs)
    rows = []
    for name, scores in runs.items():
        contrast = None
        if name != baseline:
            difference, p_value = possible(means[name], metric), p_values[None, name]
            base = runs[baseline]
            contrast = TasksContrast(
                difference=difference,
                p_value=p_value,
                verdict=verdict_of(difference, p_value),
                outcomes=outcomes(scores, base),
                improvement=probability_of_improvement(scores, base, together=together),
            )
        rows.append(
            TasksRow(
                arm=name,
                scores=scores,
                mean=possible_mean(tasks_interval(tables[name], together=together), metric),
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
    return TasksComparison(material, judged, tuple(rows), len(family))


def _thresholds(runs: Mapping[str, np.ndarray]) -> np.ndarray:
    """From just below the lowest score of any run and task, which all are above, to the highest, which none is."""
    lowest, highest = min(scores.min() for scores in runs.values()), max(scores.max() for scores in runs.values())
    scores = np.linspace(lowest, max(highest, lowest + 1e-3), THRESHOLDS - 1)
    return np.concatenate([[2 * scores[0] - scores[1]], scores])
