"""What a training spent, at each of its rollouts, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from rlvr_cli.config.batch import batch_arithmetic
from rlvr_cli.core.errors import RunError
from rlvr_cli.evaluation.comparison.records import ComparedRun
from rlvr_cli.runs.records import read_jsonl
from rlvr_cli.runs.seals import read_record

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


def spending(run: ComparedRun) -> list[Spent]:
    """What was spent until after each optimizer step from the first on.

    Raises RunError where the records are damaged or do not fit one another.
    """
    return [one for _, one in _spending(run)]


def spending_by_rollout(run: ComparedRun) -> dict[int, Spent]:
    """What was spent until the end of each rollout, by how many these are then. Raises as above."""
    return {row["rollout"] + 1: one for row, one in _spending(run)}


def _timed_rows(run: ComparedRun) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without a last one whose time is not written yet."""
    rows = read_record(run.run, run.run.metrics_path)
    # A step's time is written after the step: the run is between the two, or was killed there.
    return rows[:-1] if len(read_jsonl(run.run.timings_path)) == len(rows) - 1 else rows


def _spending(run: ComparedRun) -> list[tuple[dict[str, Any], Spent]]:
    """The line of each step, and what was spent until after it."""
    rows = _timed_rows(run)
    if not rows:
        raise RunError(f"{run.run.metrics_path}: no step is recorded.")
    timings = read_jsonl(run.run.timings_path)
    if len(timings) < len(rows):
        raise RunError(
            f"{run.run.timings_path}: has {len(timings)} lines where {run.run.metrics_path.name} has {len(rows)}. "
            "The file was altered."
        )
    spent, last = [], _NOTHING
    for number, (step, timing) in enumerate(zip(rows, timings, strict=False), start=1):
        try:
            last = _after(last, step, timing, batch_arithmetic(run.config).completions)
        except (KeyError, TypeError) as error:
            raise RunError(
                f"{run.run.metrics_path}:{number}: this step, or its line in {run.run.timings_path.name}, lacks "
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
