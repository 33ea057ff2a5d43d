"""Wins, ties and losses of one arm against another over problems."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rlvr_cli.stats.scores import same_problems

_TIE = 1e-9


@dataclass(frozen=True)
class Outcomes:
    """On how many problems an arm's mean over its seeds is above, as, or below the other's."""

    wins: int
    ties: int
    losses: int


def outcomes(a: ArrayLike, b: ArrayLike) -> Outcomes:
    """How often a [S1, P] wins against b [S2, P]. Counts, not evidence: noise alone gives wins and losses.

    Raises ValueError as ``score_matrix`` and for unequal numbers of problems.
    """
    first, second = same_problems(a, b)
    difference = first.mean(0) - second.mean(0)
    # Means of the same scores in another order differ in the last digits.
    tie = _TIE * max(np.abs(first).max(), np.abs(second).max())
    wins, losses = int(np.count_nonzero(difference > tie)), int(np.count_nonzero(difference < -tie))
    return Outcomes(wins, difference.size - wins - losses, losses)
