"""Draw a curve as one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(points: Sequence[tuple[int, float]], length: int, width: int) -> str:
    """Draw ``points`` in at most ``width`` characters; blank = no point.

    A character is the mean of the points in its interval, on levels from the minimum to the maximum. Equal points are
    drawn half-way.

    Args:
        points: (position from 0, finite value).
        length: of the axis: positions are below it.
    """
    bins: list[list[float]] = [[] for _ in range(min(width, length))]
    for position, value in points:
        bins[position * len(bins) // length].append(value)
    if not points:
        return " " * len(bins)
    least, greatest = (choose(value for _, value in points) for choose in (min, max))
    return "".join(_character(values, least, greatest) for values in bins)


def _character(values: list[float], least: float, greatest: float) -> str:
    if not values:
        return " "
    # Halved, since the difference of two finite numbers may overflow.
    span = greatest / 2 - least / 2
    if span == 0:
        return BLOCKS[(len(BLOCKS) - 1) // 2]
    mean = math.fsum(value / len(values) for value in values)
    return BLOCKS[min(len(BLOCKS) - 1, int((mean / 2 - least / 2) / span * len(BLOCKS)))]
