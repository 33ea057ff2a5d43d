"""Validated score arrays [seeds, problems]; wins, ties and losses over problems."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
_TIE = 1e-9


def validate_scores(values: ArrayLike) -> Array:
    """Return a float array [seeds, problems]. Raises ValueError if empty, ragged, not two-dimensional or not finite."""
    try:
        data = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"scores must be numbers [seeds, problems] ({error})") from error
    if data.ndim != 2:
        raise ValueError(f"scores must have two dimensions, seeds x problems; got {data.ndim}")
    if data.size == 0:
        raise ValueError(f"scores must not be empty; got {data.shape[0]} seeds x {data.shape[1]} problems")
    if invalid := int(np.count_nonzero(~np.isfinite(data))):
        raise ValueError(f"{invalid} of {data.size} scores are NaN or infinite")
    return data


def validate_problems(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Return two arms [seeds, problems] as arrays. Raises ValueError as ``validate_scores``, and for unequal P."""
    first, second = validate_scores(a), validate_scores(b)
    if first.shape[1] != second.shape[1]:
        raise ValueError(f"arms must have the same problems; got {first.shape[1]} and {second.shape[1]}")
    return first, second


def validate_pairs(a: ArrayLike, b: ArrayLike) -> tuple[Array, Array]:
    """Return two arms as arrays. Raises ValueError as ``validate_problems``, and for unequal numbers of seeds."""
    first, second = validate_problems(a, b)
    if len(first) != len(second):
        raise ValueError(f"paired arms must have the same seeds; got {len(first)} and {len(second)}")
    return first, second


@dataclass(frozen=True)
class Outcomes:
    """Numbers of problems on which an arm's mean over seeds is above, equal to, or below the other's."""

    wins: int
    ties: int
    losses: int


def count_outcomes(a: ArrayLike, b: ArrayLike) -> Outcomes:
    """Count wins, ties and losses of a [S1, P] against b [S2, P]. Raises ValueError as ``validate_problems``."""
    first, second = validate_problems(a, b)
    difference = first.mean(0) - second.mean(0)
    # Means of the same scores in another order differ by rounding.
    tie = _TIE * max(np.abs(first).max(), np.abs(second).max())
    wins, losses = int(np.count_nonzero(difference > tie)), int(np.count_nonzero(difference < -tie))
    return Outcomes(wins, difference.size - wins - losses, losses)
