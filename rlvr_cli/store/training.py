"""What a training recorded in each step: its curves over rollouts, and what it had spent until then."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import number, read_jsonl
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import read_record
from rlvr_cli.stats.scores import Array
from rlvr_cli.store.metrics import METRICS, accuracy_of, held_out_accuracy

if TYPE_CHECKING:
    from rlvr_cli.store.find import Run

# (rollout from 0, value) of finite values, by rollout.
Points = tuple[tuple[int, float], ...]

# Of what is spent: rollout batches; optimizer steps; sampled completion tokens (of imitation the tokens learned from);
# completion tokens that updates went over, each as often as a pass did; seconds of rollouts, verification and updates,
# without held-out evaluations and checkpoints; seconds of updates alone.
COSTS = ("rollouts", "updates", "tokens", "update_tokens", "seconds", "update_seconds")
BUDGETS = ("rollouts", "updates", "tokens", "seconds")
# What depends on the machine and its load; the others are counted.
TIMED = ("seconds", "update_seconds")
# What was spent until a point of a training, by the names of COSTS.
Spent = Mapping[str, float]


@dataclass(frozen=True)
class Steps:
    """The lines of metrics.jsonl and of timings.jsonl, a mapping for each optimizer step."""

    metrics: list[dict[str, Any]]
    timings: list[dict[str, Any]]


def read_steps(run: RunDir) -> Steps:
    """Return what the run recorded of its steps. Raises RunError where it is damaged."""
    return Steps(read_record(run, run.metrics_path), read_jsonl(run.timings_path))


def whole_rows(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Return those of ``rows`` that are an optimizer step's: with a `rollout` from 0."""
    return [row for row in rows if isinstance(row, dict) and type(row.get("rollout")) is int and row["rollout"] >= 0]


def learning_curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Return by name the curves that the run has a key for: one without a finite value has no points.

    Args:
        rows: the lines of metrics.jsonl, each with an integer `rollout`.
    """
    evaluations = [row["eval"] for row in rows if isinstance(row.get("eval"), dict)]
    accuracy = accuracy_of(dict.fromkeys(name for metrics in evaluations for name in metrics))
    curves = {}
    for key, metric in METRICS.items():
        if key == "eval" and accuracy is not None:
            curves[held_out_accuracy(accuracy)] = by_rollout(recorded_values(rows, accuracy, held_out=True))
        elif key != "eval" and metric.curve and (values := recorded_values(rows, key)):
            curves[metric.curve] = by_rollout(values)
    return curves


def recorded_values(rows: Iterable[Mapping[str, Any]], name: str, *, held_out: bool = False) -> list[tuple[int, Any]]:
    """Return (rollout, value) of each line that has the metric, be it no number.

    Args:
        held_out: whether to read the held-out evaluation of a line, not the line.
    """
    lines = [(row["rollout"], row.get("eval") if held_out else row) for row in rows]
    return [(rollout, line[name]) for rollout, line in lines if isinstance(line, dict) and name in line]


def by_rollout(values: Iterable[tuple[int, Any]]) -> Points:
    """Return one point for each rollout from the (rollout, value) of each line: the mean over its finite values."""
    finite: dict[int, list[float]] = {}
    for rollout, value in values:
        if (known := number(value)) is not None:
            finite.setdefault(rollout, []).append(known)
    # Divided before they are added: the sum of large values may not be finite.
    means = {x: own[0] if len(own) == 1 else math.fsum(value / len(own) for value in own) for x, own in finite.items()}
    return tuple(sorted(means.items()))


def ends(points: Points) -> dict[str, float | None]:
    """Return the first, last, least and greatest value; None without a point."""
    values = [value for _, value in points]
    if not values:
        return dict.fromkeys(("first", "last", "least", "greatest"))
    return {"first": values[0], "last": values[-1], "least": min(values), "greatest": max(values)}


def curve_as_json(points: Points) -> dict[str, Any]:
    """Return the points and their :func:`ends` as JSON values."""
    return {**ends(points), "rollouts": [x for x, _ in points], "values": [value for _, value in points]}


def spending(run: Run) -> dict[str, Array]:
    """Return [steps] for each of COSTS: what was spent until after each optimizer step from the first on.

    Raises RunError where the records are damaged or do not fit one another.
    """
    path, recorded = run.dir.metrics_path, run.steps
    rows, timings = recorded.metrics, recorded.timings
    if len(timings) == len(rows) - 1 and run.manifest.get("status") != "finished":
        rows = rows[:-1]  # a step's time is written after the step: the run is between the two, or was killed there
    if not rows:
        raise RunError(f"{path}: no step is recorded.")
    if len(timings) < len(rows):
        raise RunError(
            f"{run.dir.timings_path}: has {len(timings)} lines where {path.name} has {len(rows)}. The file was altered."
        )
    completions = run.config.rollout.prompts * run.config.rollout.group_size
    steps, rollouts = [], 0
    for line, (row, timing) in enumerate(zip(rows, timings, strict=False), start=1):
        try:
            sampled = row["length"] * completions if "length" in row else row["update_tokens"]
            # Every step of a rollout repeats the rollout's own numbers.
            is_new = row["rollout"] >= rollouts or "length" not in row
            rollouts = row["rollout"] + 1
            seconds, update_seconds = float(timing["seconds"]), float(timing["seconds/update"])
            steps.append((1, sampled if is_new else 0.0, float(row["update_tokens"]), seconds, update_seconds))
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{path}:{line}: this step, or its line in {run.dir.timings_path.name}, lacks {error}. The file was "
                "altered."
            ) from error
    columns = np.cumsum(np.array(steps, dtype=np.float64), axis=0).T
    return dict(zip(COSTS, (np.array([row["rollout"] + 1.0 for row in rows[: len(steps)]]), *columns), strict=True))


def spent_at(spent: Mapping[str, Array], step: int) -> Spent:
    """Return what was spent until after an optimizer step, from 1."""
    return {cost: float(values[step - 1]) for cost, values in spent.items()}


def last_steps(spent: Mapping[str, Array]) -> dict[int, int]:
    """Return the last optimizer step (from 1) of each rollout, by how many rollouts are done then."""
    return {int(rollouts): step for step, rollouts in enumerate(spent["rollouts"], start=1)}
