"""Validated score arrays [seeds, problems]; wins, ties and losses over problems."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
_TIE = 1e-9


def score_matrix(values: ArrayLike) -> Array:
    """Return ``values`` as a float array [seeds, problems].

    Raises ValueError if it is empty, not two-dimensional or ragged, or contains NaN or infinity.
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
    """Return two arms [seeds, problems] as arrays. Raises ValueError as ``score_matrix``, and for unequal problems."""
    first, second = score_matrix(a), score_matrix(b)
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"{first.shape[1]} problems in one arm and {second.shape[1]} in the other: a pair needs both")
    return first, second


def paired_scores(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Return two arms as arrays. Raises ValueError as ``same_problems``, and for unequal numbers of seeds."""
    first, second = same_problems(a, b)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} seeds in one arm and {len(second)} in the other: a pair needs both")
    return first, second


@dataclass(frozen=True)
class Outcomes:
    """The numbers of problems on which an arm's mean over seeds is above, equal to, or below the other's."""

    wins: int
    ties: int
    losses: int


def outcomes(a: ArrayLike, b: ArrayLike) -> Outcomes:
    """Count wins, ties and losses of a [S1, P] against b [S2, P]; not evidence: noise alone gives wins and losses.

    Raises ValueError as ``score_matrix`` and for unequal numbers of problems.
    """
    first, second = same_problems(a, b)
    difference = first.mean(0) - second.mean(0)
    # Rounding: means of the same scores in another order differ in the last digits.
    tie = _TIE * max(np.abs(first).max(), np.abs(second).max())
    wins, losses = int(np.count_nonzero(difference > tie)), int(np.count_nonzero(difference < -tie))
    return Outcomes(wins, difference.size - wins - losses, losses)
