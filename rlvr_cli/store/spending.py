"""What a training spent, at each of its rollouts, from its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.runs.records import read_record
from rlvr_cli.store.evaluation import Evaluation, held_out
from rlvr_cli.store.find import Run
from rlvr_cli.store.values import problem_values

BUDGETS = ("rollouts", "updates", "tokens", "seconds")


@dataclass(frozen=True)
class Spent:
    """All that was spent from the beginning of a training to a point of it.

    Attributes:
        rollouts: rollout batches. updates: optimizer steps.
        tokens: sampled completion tokens; of imitation the tokens learned from.
        update_tokens: completion tokens that updates went over, each as often as a pass did.
        seconds: rollouts, verification and updates, without held-out evaluations and checkpoints.
        update_seconds: updates alone.
    """

    rollouts: float
    updates: float
    tokens: float
    update_tokens: float
    seconds: float
    update_seconds: float

    def of(self, budget: str) -> float:
        """The part that is called ``budget``, one of the fields."""
        return float(getattr(self, budget))


PARTS = tuple(field.name for field in fields(Spent))
# What depends on the machine and its load; the others are counted.
TIMED = ("seconds", "update_seconds")
_NOTHING = Spent(0, 0, 0, 0, 0, 0)


def spending(run: Run) -> list[Spent]:
    """What was spent until after each optimizer step from the first on.

    Raises RunError where the records are damaged or do not fit one another.
    """
    return [one for _, one in _spending(run)]


def spending_by_rollout(run: Run) -> dict[int, Spent]:
    """What was spent until the end of each rollout, by how many these are then. Raises as above."""
    return {row["rollout"] + 1: one for row, one in _spending(run)}


def _timed_rows(run: Run) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without a last one whose time is not written yet."""
    rows = read_record(run.dir, run.dir.metrics_path)
    # A step's time is written after the step: the run is between the two, or was killed there.
    return rows[:-1] if len(read_jsonl(run.dir.timings_path)) == len(rows) - 1 else rows


def _spending(run: Run) -> list[tuple[dict[str, Any], Spent]]:
    """The line of each step, and what was spent until after it."""
    rows = _timed_rows(run)
    if not rows:
        raise RunError(f"{run.dir.metrics_path}: no step is recorded.")
    timings = read_jsonl(run.dir.timings_path)
    if len(timings) < len(rows):
        raise RunError(
            f"{run.dir.timings_path}: has {len(timings)} lines where {run.dir.metrics_path.name} has {len(rows)}. "
            "The file was altered."
        )
    spent, last = [], _NOTHING
    for number, (step, timing) in enumerate(zip(rows, timings, strict=False), start=1):
        try:
            last = _after(last, step, timing, run.config.rollout.prompts * run.config.rollout.group_size)
        except (KeyError, TypeError) as error:
            raise RunError(
                f"{run.dir.metrics_path}:{number}: this step, or its line in {run.dir.timings_path.name}, lacks "
                f"{error}. The file was altered."
            ) from error
        spent.append((step, last))
    return spent


def _after(last: Spent, step: dict[str, Any], timing: dict[str, Any], completions: int) -> Spent:
    rollouts = step["rollout"] + 1
    sampled = step["length"] * completions if "length" in step else step["update_tokens"]
    # Every step of a rollout repeats the rollout's own numbers.
    fresh = rollouts > last.rollouts or "length" not in step
    return Spent(
        rollouts=rollouts,
        updates=last.updates + 1,
        tokens=last.tokens + (sampled if fresh else 0.0),
        update_tokens=last.update_tokens + step["update_tokens"],
        seconds=last.seconds + timing["seconds"],
        update_seconds=last.update_seconds + timing["seconds/update"],
    )


def mean_spent(spent: Sequence[Spent]) -> Spent:
    """The mean over runs."""
    return Spent(*(sum(one.of(part) for one in spent) / len(spent) for part in PARTS))


@dataclass(frozen=True)
class SpendingCurve:
    """The evaluations of one run, at least one, and the spending at each, both in the order of training."""

    run: Run
    evaluations: tuple[Evaluation, ...]
    spent: tuple[Spent, ...]

    def budget(self, name: str) -> np.ndarray:
        """[points] What of the budget had been spent at each evaluation; it grows strictly."""
        return np.array([spent.of(name) for spent in self.spent])


def read_curve(run: Run, problems: list[str]) -> SpendingCurve | None:
    """The curve of a run; None, and lines in ``problems``, where there is none or its records are damaged."""
    damaged: list[str] = []
    evaluations = held_out(run.dir, damaged)
    if damaged:
        problems += damaged
        return None
    if not evaluations:
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
    for evaluation in evaluations:
        rollouts = evaluation.result["rollouts"]
        if rollouts > max(spent) and run.manifest.get("status") != "finished":
            continue  # it comes before its step is recorded: the run is between the two, or was killed there
        if rollouts not in spent:
            name = run.dir.metrics_path.name
            problems.append(f"{evaluation.folder}: {name} has no rollout {rollouts}. It was altered.")
            return None
        points.append((evaluation, spent[rollouts]))
    if not points:
        problems.append(f"{run.path}: its first held-out evaluation is of a step that is not recorded yet.")
        return None
    return SpendingCurve(run, tuple(one for one, _ in points), tuple(one for _, one in points))


def common_budget(curves: Sequence[SpendingCurve], budget: str, problems: list[str]) -> tuple[float, float] | None:
    """From where to where every curve has values; None, and a line in ``problems``, where that is nowhere."""
    start = max(float(curve.budget(budget)[0]) for curve in curves)
    end = min(float(curve.budget(budget)[-1]) for curve in curves)
    if start <= end:
        return start, end
    late = max(curves, key=lambda curve: float(curve.budget(budget)[0]))
    early = min(curves, key=lambda curve: float(curve.budget(budget)[-1]))
    problems.append(
        f"--match {budget}: no common budget: {late.run.path} was first evaluated after {start:,.6g} {budget}, "
        f"{early.run.path} last after {end:,.6g}. Evaluate more often (eval.every) or train longer."
    )
    return None


def curve_values(curve: SpendingCurve, metric: str, samples: int, ids: Sequence[str]) -> np.ndarray:
    """[points, problems] of a metric over the first ``samples`` samples, in the order of ``ids``."""
    tables: list[Mapping[str, float]] = [problem_values(one, metric, samples) for one in curve.evaluations]
    return np.array([[table[name] for name in ids] for table in tables])
