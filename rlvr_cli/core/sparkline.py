"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = ".:-=+*#@"


def levels_for(encoding: str | None) -> str:
    """The characters of eight levels, from low to high, that text in ``encoding`` can have."""
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def sparkline(points: Sequence[tuple[int, float]], length: int, width: int, levels: str = BLOCKS) -> str:
    """``points`` as at most ``width`` characters; a blank is a place without a point.

    A character stands for the mean of the points in its part of the axis; the lowest level is that of the least point
    and the highest that of the greatest. Points that are all equal are drawn half-way.

    Args:
        points: (position from 0, finite value).
        length: of the axis: positions are below it.
        levels: characters from low to high.
    """
    bins: list[list[float]] = [[] for _ in range(min(width, length))]
    for position, value in points:
        bins[position * len(bins) // length].append(value)
    if not points:
        return " " * len(bins)
    least, greatest = (choose(value for _, value in points) for choose in (min, max))
    return "".join(_character(values, least, greatest, levels) for values in bins)


def _character(values: list[float], least: float, greatest: float, levels: str) -> str:
    if not values:
        return " "
    # Halved: the difference of two finite numbers may not be finite.
    span = greatest / 2 - least / 2
    if span == 0:
        return levels[(len(levels) - 1) // 2]
    mean = math.fsum(value / len(values) for value in values)
    return levels[min(len(levels) - 1, int((mean / 2 - least / 2) / span * len(levels)))]
