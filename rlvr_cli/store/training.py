"""Learning curves and cumulative costs from the step records of a training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlvr_cli.config.rollout import RolloutConfig
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import finite, read_jsonl
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import read_record
from rlvr_cli.stats.scores import Array
from rlvr_cli.store.metrics import METRICS, accuracy_of, held_out_accuracy

# (rollout from 0, value) of finite values, by rollout.
Points = tuple[tuple[int, float], ...]

# Costs: rollout batches; optimizer steps; sampled completion tokens, also greedy and replaced ones (in imitation:
# training tokens); completion tokens of updates, counted once per pass; seconds of rollouts, verification and updates,
# without held-out evaluations and checkpoints; seconds of updates.
COSTS = ("rollouts", "updates", "tokens", "update_tokens", "seconds", "update_seconds")
BUDGETS = ("rollouts", "updates", "tokens", "seconds")
# Costs that depend on the machine and its load.
TIMED = ("seconds", "update_seconds")
# Cumulative costs at a point of a training, by the names of COSTS.
Spent = Mapping[str, float]


@dataclass(frozen=True)
class Steps:
    """The lines of metrics.jsonl and of timings.jsonl, a mapping for each optimizer step."""

    metrics: list[dict[str, Any]]
    timings: list[dict[str, Any]]


def read_steps(run: RunDir) -> Steps:
    return Steps(read_record(run, run.metrics_path), read_jsonl(run.timings_path))


def filter_step_rows(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Filter the ``rows`` of optimizer steps: mappings with an integer `rollout` of at least 0."""
    return [row for row in rows if isinstance(row, dict) and type(row.get("rollout")) is int and row["rollout"] >= 0]


def learning_curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Return the recorded metrics' curves from metrics.jsonl; without finite values, a curve has no points."""
    evaluations = [row["eval"] for row in rows if isinstance(row.get("eval"), dict)]
    accuracy = accuracy_of(dict.fromkeys(name for metrics in evaluations for name in metrics))
    curves = {}
    for key, metric in METRICS.items():
        if key == "eval" and accuracy is not None:
            curves[held_out_accuracy(accuracy)] = average_by_rollout(recorded_values(rows, accuracy, held_out=True))
        elif key != "eval" and metric.curve and (values := recorded_values(rows, key)):
            curves[metric.curve] = average_by_rollout(values)
    return curves


def recorded_values(rows: Iterable[Mapping[str, Any]], name: str, *, held_out: bool = False) -> list[tuple[int, Any]]:
    """Return (rollout, value) of each line with the metric or its ``held_out`` evaluation, unchecked."""
    if not held_out:
        return [(row["rollout"], row[name]) for row in rows if name in row]
    lines = [(row["rollout"], row.get("eval")) for row in rows]
    return [(rollout, line[name]) for rollout, line in lines if isinstance(line, dict) and name in line]


def average_by_rollout(values: Iterable[tuple[int, Any]]) -> Points:
    """Average the finite values of each rollout."""
    collected: dict[int, list[float]] = {}
    for rollout, value in values:
        if (finite_value := finite(value)) is not None:
            collected.setdefault(rollout, []).append(finite_value)
    # Divide before adding: the sum of large values may overflow.
    means = (
        (x, terms[0] if len(terms) == 1 else math.fsum(value / len(terms) for value in terms))
        for x, terms in collected.items()
    )
    return tuple(sorted(means))


def ends(points: Points) -> dict[str, float | None]:
    """Return the first, last, least and greatest value; None for an empty curve."""
    values = [value for _, value in points]
    if not values:
        return dict.fromkeys(("first", "last", "least", "greatest"))
    return {"first": values[0], "last": values[-1], "least": min(values), "greatest": max(values)}


def curve_as_json(points: Points) -> dict[str, Any]:
    return {**ends(points), "rollouts": [x for x, _ in points], "values": [value for _, value in points]}


def cumulative_costs(run: RunDir, steps: Steps, config: RolloutConfig, *, finished: bool) -> dict[str, Array]:
    """Return [steps] of each of COSTS after every optimizer step. Raises RunError for damaged records."""
    path, rows, timings = run.metrics_path, steps.metrics, steps.timings
    if len(timings) == len(rows) - 1 and not finished:
        # A step's time is written after the step: the run is between the two, or was killed in between.
        rows = rows[:-1]
    if not rows:
        raise RunError(f"{path}: no step is recorded.")
    if len(timings) < len(rows):
        raise RunError(
            f"{run.timings_path}: has {len(timings)} lines where {path.name} has {len(rows)}. The file was altered."
        )
    completions = config.prompts * config.group_size
    costs, rollouts = [], 0
    for line, (row, timing) in enumerate(zip(rows, timings, strict=False), start=1):
        try:
            sampled = row["length"] * completions if "length" in row else row["update_tokens"]
            sampled += row.get("extra_tokens") or 0.0
            # Every step of a rollout repeats the rollout's metrics.
            is_new = row["rollout"] >= rollouts or "length" not in row
            rollouts = row["rollout"] + 1
            seconds, update_seconds = float(timing["seconds"]), float(timing["seconds/update"])
            costs.append((1, sampled if is_new else 0.0, float(row["update_tokens"]), seconds, update_seconds))
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{path}:{line}: this step, or its line in {run.timings_path.name}, lacks {error}. The file was "
                "altered."
            ) from error
    columns = np.cumsum(np.array(costs, dtype=np.float64), axis=0).T
    return dict(zip(COSTS, (np.array([row["rollout"] + 1.0 for row in rows[: len(costs)]]), *columns), strict=True))


def spent_at(spent: Mapping[str, Array], step: int) -> Spent:
    """Return the cumulative costs after an optimizer step, from 1."""
    return {cost: float(values[step - 1]) for cost, values in spent.items()}


def last_steps(spent: Mapping[str, Array]) -> dict[int, int]:
    """Return the last optimizer step (from 1) of each rollout, by the number of rollouts done."""
    return {int(rollouts): step for step, rollouts in enumerate(spent["rollouts"], start=1)}
