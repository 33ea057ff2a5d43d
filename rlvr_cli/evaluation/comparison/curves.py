"""A run's held-out evaluations in the course of training, each with what had been spent until then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlvr_cli.core.errors import RunError
from rlvr_cli.evaluation.compare import Evaluation
from rlvr_cli.evaluation.comparison.choose import read
from rlvr_cli.evaluation.comparison.cost import Spent, spending_by_rollout
from rlvr_cli.evaluation.comparison.records import ComparedRun
from rlvr_cli.evaluation.comparison.values import problem_values


@dataclass(frozen=True)
class Curve:
    """The evaluations of one run, at least one, and the spending at each, both in the order of training."""

    run: ComparedRun
    evaluations: tuple[Evaluation, ...]
    spent: tuple[Spent, ...]

    def budget(self, name: str) -> np.ndarray:
        """[points] What of the budget had been spent at each evaluation; it grows strictly."""
        return np.array([spent.of(name) for spent in self.spent])


def read_curve(run: ComparedRun, problems: list[str]) -> Curve | None:
    """The curve of a run; None, and lines in ``problems``, where there is none or its records are damaged."""
    folders = sorted(run.run.held_out_dir.glob("rollout-*/metrics.json"))
    if not folders:
        every = run.config.eval.every
        problems.append(
            f"{run.path}: has no held-out evaluations from training (eval.every={every}), which --match compares. "
            + ("Train with eval.every=5, say." if every == 0 else "They were not reached, or were removed.")
        )
        return None
    try:
        spent = spending_by_rollout(run)
    except RunError as error:
        problems.append(str(error))
        return None
    points = []
    for path in folders:
        rollouts = int(path.parent.name.removeprefix("rollout-"))
        if rollouts > max(spent) and run.manifest.get("status") != "finished":
            continue  # it comes before its step is recorded: the run is between the two, or was killed there
        if rollouts not in spent:
            problems.append(f"{path.parent}: {run.run.metrics_path.name} knows no rollout {rollouts}. It was altered.")
            return None
        evaluation = read(path.parent, problems)
        if evaluation is None:
            return None
        points.append((evaluation, spent[rollouts]))
    if not points:
        problems.append(f"{run.path}: its first held-out evaluation is of a step that is not recorded yet.")
        return None
    return Curve(run, tuple(one for one, _ in points), tuple(one for _, one in points))


def common_budget(curves: Sequence[Curve], budget: str, problems: list[str]) -> tuple[float, float] | None:
    """From where to where every curve has values; None, and a line in ``problems``, where that is nowhere."""
    start = max(float(curve.budget(budget)[0]) for curve in curves)
    end = min(float(curve.budget(budget)[-1]) for curve in curves)
    if start <= end:
        return start, end
    late = max(curves, key=lambda curve: float(curve.budget(budget)[0]))
    early = min(curves, key=lambda curve: float(curve.budget(budget)[-1]))
    problems.append(
        f"--match {budget}: no budget is common: {late.run.path} was first evaluated after {start:,.6g} {budget}, "
        f"{early.run.path} last after {end:,.6g}. Evaluate more often (eval.every) or train longer."
    )
    return None


def curve_values(curve: Curve, metric: str, samples: int, ids: Sequence[str]) -> np.ndarray:
    """[points, problems] of a metric over the first ``samples`` samples, in the order of ``ids``."""
    tables: list[Mapping[str, float]] = [problem_values(one, metric, samples) for one in curve.evaluations]
    return np.array([[table[name] for name in ids] for table in tables])
