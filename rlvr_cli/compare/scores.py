"""Read the scores of runs, [problems] each: of final evaluations, or at a budget on learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlvr_cli.compare.evaluations import choose_evaluations, settings_problems, shared_problems
from rlvr_cli.compare.request import BENCHMARK, CompareRequest
from rlvr_cli.core.errors import RunError, UserError, collect_problems
from rlvr_cli.stats.curves import Curve
from rlvr_cli.stats.intervals import Bounds
from rlvr_cli.stats.scores import Array
from rlvr_cli.store.arm import Replicate
from rlvr_cli.store.evaluation import Evaluation
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import bounds
from rlvr_cli.store.training import Spent, spent_at
from rlvr_cli.store.values import HeldOut, problem_values, read_held_out, resolve_metric


@dataclass(frozen=True)
class RunScores:
    """The scores of one run.

    Attributes:
        values: [problems] of the metric. spent: the cumulative costs at the checkpoint or budget of the values.
        evaluation: the final evaluation; None in a matched comparison, which has a learning ``curve``.
    """

    run: Run
    values: Array
    spent: Spent
    evaluation: Evaluation | None = None
    curve: Curve | None = None


@dataclass(frozen=True, kw_only=True)
class SharedScores:
    """The scores of runs over the same problems.

    Attributes:
        by_path: by the run's path.
        metric, samples: the metric and its number of samples per problem. problems: ids, sorted.
        settings: the shared settings of the evaluations. bounds: of a mean of the metric.
        start, end: of a matched comparison, the range of the budget that all runs cover.
        notes: for the user, printed with the results.
    """

    by_path: Mapping[str, RunScores]
    metric: str
    samples: int
    problems: tuple[str, ...]
    settings: Mapping[str, Any]
    bounds: Bounds
    notes: tuple[str, ...]
    start: float = 0.0
    end: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TaskScores(SharedScores):
    """The scores of the arms on one task.

    ``arms``: the compared runs of each arm by name. ``controls``: the control arms of each arm that has some.
    """

    request: CompareRequest
    arms: Mapping[str, Mapping[Replicate, RunScores]]
    baseline: str
    controls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def paired(self) -> bool:
        """Return whether runs are paired with the baseline's run of the same seed."""
        return not self.request.unpaired

    def pair(self, arm: str, base: str | None = None) -> tuple[list[RunScores], list[RunScores]]:
        """Return the runs of an arm and of ``base``, by default the baseline.

        If paired, only of common seeds, in the same order.
        """
        first, second = self.arms[arm], self.arms[self.baseline if base is None else base]
        if not self.paired:
            return list(first.values()), list(second.values())
        common = [replicate for replicate in first if replicate in second]
        return [first[replicate] for replicate in common], [second[replicate] for replicate in common]

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        runs = [scores for arm in self.arms.values() for scores in arm.values()]
        return {scores.run.path: scores.evaluation for scores in runs if scores.evaluation is not None}


def score_table(runs: Sequence[RunScores]) -> Array:
    return np.stack([scores.values for scores in runs])


@dataclass(frozen=True)
class Scores:
    """The same arms on one or several tasks, by the task's name, with one baseline."""

    request: CompareRequest
    tasks: Mapping[str, TaskScores]
    notes: tuple[str, ...]

    @property
    def first(self) -> TaskScores:
        """Return the first task, for properties that all share."""
        return next(iter(self.tasks.values()))

    @property
    def baseline(self) -> str:
        return self.first.baseline

    @property
    def together(self) -> bool:
        """Return whether a run is evaluated on every task; otherwise no two tasks share a run."""
        return self.request.over == BENCHMARK


def read_finals(request: CompareRequest, runs: Sequence[Run]) -> SharedScores:
    evaluations = choose_evaluations(runs, benchmark=request.benchmark, where=request.where)
    shared = _share(request, evaluations)
    problems, scores = list[str](), dict[str, RunScores]()
    for run in runs:
        evaluation = evaluations[run.path]
        with collect_problems(problems):
            spent, step = run.spent, max(evaluation.steps, default=0)
            if not 1 <= step <= len(spent["updates"]):
                steps = len(spent["updates"])
                raise RunError(f"{evaluation.folder}: is of step {step}, but {run.path} records {steps} steps.")
            values = problem_values(evaluation, shared.metric, shared.samples, shared.problems)
            scores[run.path] = RunScores(run, values, spent_at(spent, step), evaluation)
    if problems:
        raise UserError(problems)
    return replace(shared, by_path=scores)


def read_matched(request: CompareRequest, runs: Sequence[Run]) -> SharedScores:
    """Read the scores of the held-out evaluations in training, at the largest budget that all runs reach."""
    budget, problems, read = str(request.match), list[str](), dict[str, HeldOut]()
    for run in runs:
        with collect_problems(problems):
            read[run.path] = read_held_out(run)
    if problems:
        raise UserError(problems)
    every = {str(each.folder): each for held_out in read.values() for each in held_out.evaluations}
    problems += settings_problems({path: held_out.evaluations[0] for path, held_out in read.items()})
    with collect_problems(problems):
        shared = _share(request, every)
    with collect_problems(problems):
        start, end = _common_budget({path: held_out.spent[budget] for path, held_out in read.items()}, budget)
    if problems:
        raise UserError(problems)
    scores = {}
    for run in runs:
        with collect_problems(problems):
            curve = read[run.path].curve(budget, shared.metric, shared.samples, shared.problems)
            spent = read[run.path].spent
            at_end = {cost: float(np.interp(end, spent[budget], values)) for cost, values in spent.items()}
            scores[run.path] = RunScores(run, curve.at(end), at_end, curve=curve)
    if problems:
        raise UserError(problems)
    return replace(shared, by_path=scores, start=start, end=end)


def _share(request: CompareRequest, evaluations: Mapping[str, Evaluation]) -> SharedScores:
    """Return the problems, metric and settings that ``evaluations`` share, without scores."""
    problems = list[str]()
    with collect_problems(problems):
        ids, note = shared_problems(evaluations, only_common=request.common_problems)
    with collect_problems(problems):
        metric, samples = resolve_metric(request.metric, evaluations)
    if problems:
        raise UserError(problems)
    results = [evaluation.result for evaluation in evaluations.values()]
    notes, counts = [note] if note else [], sorted({int(result["samples"]) for result in results})
    if len(counts) > 1:
        used = f"the first {samples} of each are" if samples else "the greedy completion of each is"
        notes.append(f"the evaluations have {', '.join(map(str, counts))} samples a problem; {used} compared.")
    return SharedScores(
        by_path={},
        metric=metric,
        samples=samples,
        problems=ids,
        settings=results[0],
        bounds=bounds(metric, *results),
        notes=tuple(notes),
    )


def _common_budget(spent: Mapping[str, Array], budget: str) -> tuple[float, float]:
    """Return the range of the budget that all runs cover. Raises UserError if it is empty."""
    late = max(spent, key=lambda path: float(spent[path][0]))
    early = min(spent, key=lambda path: float(spent[path][-1]))
    start, end = float(spent[late][0]), float(spent[early][-1])
    if start > end:
        raise UserError(
            f"--match {budget}: no common budget: {late} was first evaluated after {start:,.6g} {budget}, {early} last "
            f"after {end:,.6g}. Evaluate more often (validation.every) or train longer."
        )
    return start, end
