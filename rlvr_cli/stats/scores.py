"""The array that comparisons start from, one score a seed and problem, checked; wins, ties and losses over problems."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
_TIE = 1e-9


def score_matrix(values: ArrayLike) -> Array:
    """Return ``values`` as a float array [seeds, problems].

    Raises ValueError when it is empty, has another number of dimensions or ragged rows, or holds NaN or infinity.
    """
    try:
        data = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"scores must be numbers, one for each of seeds x problems ({error})") from error
    if data.ndim != 2:
        raise ValueError(f"scores must have two dimensions, seeds x problems, not {data.ndim}")
    if data.size == 0:
        raise ValueError(f"no scores: {data.shape[0]} seeds x {data.shape[1]} problems")
    broken = int(np.count_nonzero(~np.isfinite(data)))
    if broken:
        raise ValueError(f"{broken} of {data.size} scores are NaN or infinite")
    return data


def same_problems(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Two arms [seeds, problems] of the same problems. Raises ValueError as ``score_matrix`` and if they differ."""
    first, second = score_matrix(a), score_matrix(b)
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"{first.shape[1]} problems in one arm and {second.shape[1]} in the other: a pair needs both")
    return first, second


def paired_scores(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Two arms of the same seeds and problems. Raises ValueError as ``same_problems`` and if the seeds differ."""
    first, second = same_problems(a, b)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} seeds in one arm and {len(second)} in the other: a pair needs both")
    return first, second


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
