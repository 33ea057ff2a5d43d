"""Where a collapse began: the rollouts whose numbers are nearer to what they fell to than to what they were."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlvr_cli.collapse.reward import Mean
from rlvr_cli.collapse.rules import Movement
from rlvr_cli.collapse.signals import Point

# Compared by their ratios, as the rules do; shares by their differences.
BY_RATIO = ("length", "entropy")


def onset(points: Sequence[Point], evidence: Sequence[Movement], since: int = 0) -> int:
    """The place in ``points``, all up to the rollout that showed the collapse, from which it lasts; after ``since``.

    A rollout is collapsed where more than half of the numbers of the evidence are nearer to their value ``after`` than
    to that ``before``: not any one, because a policy that learns gets longer and surer too. The collapse begins where
    the collapsed rollouts since then outnumber the others by most (the earliest such place), so that a rollout that is
    out by chance decides nothing: a cumulative sum of signs, as of Page, "Continuous inspection schemes", Biometrika
    41, 1954, read backwards.

    Args:
        since: a place where the policy was sound: before it was at its best, it was no better than after its fall.
    """
    # Accuracy that never rose has not moved.
    moves = [move for move in evidence if not (move.number == "accuracy" and move.against != "best")] or list(evidence)
    begins, excess, most = len(points) - 1, 0, 0
    for place in range(len(points) - 1, since, -1):
        votes = [vote for move in moves if (vote := _is_after(points[place], move)) is not None]
        if votes:
            excess += 1 if 2 * sum(votes) > len(votes) else -1
        if excess >= most and excess > 0:
            begins, most = place, excess
    return begins


def _is_after(point: Point, move: Movement) -> bool | None:
    """Whether the number is nearer to where it came than to where it was; None where it is not known."""
    paid = move.number == "format" and move.against == "before"
    found = getattr(point, "format_paid" if paid else move.number)
    if found is None:
        return None
    value = found.value if isinstance(found, Mean) else float(found)
    by_ratio = move.number in BY_RATIO and move.before > 0 and move.after > 0
    middle = math.sqrt(move.before * move.after) if by_ratio else (move.before + move.after) / 2
    return value < middle if move.after < move.before else value > middle
