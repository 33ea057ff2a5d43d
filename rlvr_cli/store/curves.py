"""The learning curves of a run, one value a rollout, from its lines of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.core.files import number
from rlvr_cli.store.metrics import HELD_OUT, METRICS, accuracy_of, held_out_accuracy


@dataclass(frozen=True)
class TrainingCurve:
    """What was measured over a run. Where it has several updates a rollout, a value is the mean over them.

    Attributes:
        points: (rollout from 0, value), by rollout, finite values only.
    """

    name: str
    points: tuple[tuple[int, float], ...]

    def as_json(self) -> dict[str, Any]:
        """The points, and the first, last, least and greatest value (null where there is no point)."""
        return {**self.ends(), "rollouts": [x for x, _ in self.points], "values": [value for _, value in self.points]}

    def ends(self) -> dict[str, float | None]:
        """The first, last, least and greatest value; None where there is no point."""
        values = [value for _, value in self.points]
        if not values:
            return dict.fromkeys(("first", "last", "least", "greatest"))
        return {"first": values[0], "last": values[-1], "least": min(values), "greatest": max(values)}


def learning_curves(rows: Sequence[Mapping[str, Any]]) -> list[TrainingCurve]:
    """The curves that the run has a key for: one without a finite value has no points.

    Args:
        rows: the lines of metrics.jsonl, each with an integer `rollout`.
    """
    evaluations = [row["eval"] for row in rows if isinstance(row.get("eval"), dict)]
    accuracy = accuracy_of(name for name in dict.fromkeys(name for one in evaluations for name in one))
    curves = []
    for key, metric in METRICS.items():
        name = metric.curve
        if not name:
            continue
        if name == HELD_OUT:
            if accuracy is None:
                continue
            name = held_out_accuracy(accuracy)
            values = [(row["rollout"], row["eval"].get(accuracy)) for row in rows if isinstance(row.get("eval"), dict)]
        else:
            values = [(row["rollout"], row[key]) for row in rows if key in row]
        if values:
            curves.append(TrainingCurve(name, by_rollout(values)))
    return curves


def whole_rows(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Those of ``rows`` that are an optimizer step's: with a `rollout` from 0."""
    return [row for row in rows if isinstance(row, dict) and type(row.get("rollout")) is int and row["rollout"] >= 0]


def by_rollout(values: Iterable[tuple[int, Any]]) -> tuple[tuple[int, float], ...]:
    """One point a rollout from the (rollout, value) of each line: the mean over its finite values, by rollout."""
    found: dict[int, list[float]] = {}
    for rollout, value in values:
        finite = number(value)
        if finite is not None:
            found.setdefault(rollout, []).append(finite)
    # Divided before they are added: the sum of large values may not be finite.
    return tuple((x, math.fsum(value / len(found[x]) for value in found[x])) for x in sorted(found))
