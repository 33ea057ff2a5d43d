"""The numbers of a rollout that tell a collapse, from its lines of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlvr_cli.collapse.reward import Mean

# Reasons of verdicts on what has no form that could be judged, where the reward has no part for the format.
FORMLESS = ("no_answer", "bad_format", "too_long")


@dataclass(frozen=True)
class Point:
    """One rollout; None where a number is not known.

    Attributes:
        rollout: its number, from 0.
        length: mean completion, in tokens.
        truncated: share of completions cut at the limit.
        diversity: share of completions that differ from those before them of the same problem.
        entropy: of the policy, in nats a token; of the rollout's first optimizer step, whose policy is the one that
            sampled.
        grad_norm: of the same step, before clipping.
        accuracy: share of right completions among those that could be judged.
        format: share of well-formed completions.
        format_paid: the format's reward as a share of its range, where the reward has such a part.
    """

    rollout: int
    length: float | None
    truncated: float | None
    diversity: float | None
    entropy: float | None
    grad_norm: float | None
    accuracy: Mean | None
    format: Mean | None
    format_paid: Mean | None


def point_of(row: Mapping[str, Any], problems: int) -> Point:
    """The point of a rollout from its first line.

    A rollout whose completions could none of them be judged says nothing of accuracy and format. Where a line has no
    standard error, that of a share p stands for it in which a problem's completions all agree: sqrt(p (1 - p) /
    ``problems``), the largest for such a share.
    """
    judged = 1 - row.get("unscorable", 0.0)
    accuracy = form = paid = None

    def mean(value: float, error: float | None) -> Mean:
        return Mean(value, math.sqrt(max(0.0, value * (1 - value)) / problems) if error is None else error)

    if judged > 0 and "accuracy" in row:
        accuracy = mean(row["accuracy"] / judged, row.get("accuracy/se"))
        if "format" in row:
            form = mean(row["format"], row.get("format/se"))
            paid = form if "format/se" in row else None
        else:
            # What could not be judged has none of these reasons.
            formless = sum(row.get(f"reason/{reason}", 0.0) for reason in FORMLESS)
            form = mean(1 - formless / judged, None)
    return Point(
        rollout=row["rollout"],
        length=row.get("length"),
        truncated=row.get("truncated"),
        diversity=row.get("diversity"),
        entropy=row.get("entropy"),
        grad_norm=row.get("grad_norm"),
        accuracy=accuracy,
        format=form,
        format_paid=paid,
    )
