"""Names beside the lines' ends where they fit, else above the chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlvr_cli.core.text import shortened
from rlvr_cli.report.charts.svg import FONT, WIDTH

# Of a character in a page's font, in units of the picture; a little more than the mean of common ones.
CHARACTER = 0.6 * FONT
ROW = 1.4 * FONT
# Between the middles of two names, one above the other.
APART = 1.2 * FONT
SAMPLE = 24.0
GAP = 14.0
_MOST_BESIDE = 16
# Characters of a name in a row of the legend.
MOST_SHOWN = int((WIDTH - SAMPLE - 8.0) / CHARACTER)
# Of the title of one of two panels beside each other.
MOST_TITLE = int((WIDTH / 2 - 6.0) / CHARACTER)


def fit_beside(names: Sequence[str], tall: float) -> bool:
    """Whether names are short and few enough to stand at the ends of lines in a chart ``tall`` units high."""
    return max(map(len, names)) <= _MOST_BESIDE and (len(names) - 1) * APART <= tall


def width_beside(names: Sequence[str]) -> float:
    """What names take at the right of a chart."""
    return SAMPLE + 6.0 + CHARACTER * max(map(len, names))


def spread(wanted: Sequence[float], gap: float, highest: float) -> list[float]:
    """Heights from 0 to ``highest`` in the order of those wanted, at least ``gap`` apart if there is room.

    Of all such heights those with the least squared distance from the wanted ones, before they are cut at the ends:
    less the gaps below it, each is at least the one before, which is isotonic regression by pooling neighbours.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    gap = min(gap, highest / max(1, len(wanted) - 1))
    pools: list[tuple[float, int]] = []
    for rank, index in enumerate(order):
        pools.append((wanted[index] - rank * gap, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (high, many), (low, few) = pools[-2], pools[-1]
            pools[-2:] = [((high * many + low * few) / (many + few), many + few)]
    room = highest - (len(wanted) - 1) * gap
    heights = [min(max(height, 0.0), room) for height, count in pools for _ in range(count)]
    placed = [0.0] * len(wanted)
    for rank, index in enumerate(order):
        placed[index] = heights[rank] + rank * gap
    return placed


def legend_rows(names: Mapping[int, str]) -> list[list[tuple[float, int, str]]]:
    """Rows of (left edge, arm, name), filled from the left; a name longer than a row is shortened in its middle."""
    rows: list[list[tuple[float, int, str]]] = [[]]
    edge = 0.0
    for arm, name in sorted(names.items()):
        shown = shortened(name, MOST_SHOWN)
        wide = SAMPLE + 6.0 + CHARACTER * len(shown)
        if rows[-1] and edge + wide > WIDTH:
            rows.append([])
            edge = 0.0
        rows[-1].append((edge, arm, shown))
        edge += wide + GAP
    return rows
