"""Names beside the lines' ends where they fit, else above the chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlvr_cli.report.charts.svg import FONT, WIDTH
from rlvr_cli.report.charts.text import shortened

# Of a character in a page's font, in units of the picture; a little more than the mean of common ones.
CHARACTER = 0.6 * FONT
ROW = 1.4 * FONT
# Between the middles of two names, one above the other.
APART = 1.2 * FONT
SAMPLE = 24.0
GAP = 14.0
_MOST_BESIDE = 16


def fit_beside(names: Sequence[str], tall: float) -> bool:
    """Whether names are short and few enough to stand at the ends of lines in a chart ``tall`` units high."""
    return max(map(len, names)) <= _MOST_BESIDE and (len(names) - 1) * APART <= tall


def width_beside(names: Sequence[str]) -> float:
    """What names take at the right of a chart."""
    return SAMPLE + 6.0 + CHARACTER * max(map(len, names))


def spread(wanted: Sequence[float], gap: float, highest: float) -> list[float]:
    """Heights from 0 to ``highest`` near those wanted, in their order, at least ``gap`` apart if there is room."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    room = highest / max(1, len(wanted) - 1)
    gap = min(gap, room)
    placed = [0.0] * len(wanted)
    last = -gap
    for index in order:
        last = placed[index] = max(wanted[index], last + gap)
    last = highest + gap
    for index in reversed(order):
        last = placed[index] = min(placed[index], last - gap)
    return placed


def legend_rows(names: Mapping[int, str]) -> list[list[tuple[float, int, str]]]:
    """Rows of (left edge, arm, name), filled from the left; a name longer than a row is shortened in its middle."""
    rows: list[list[tuple[float, int, str]]] = [[]]
    edge = 0.0
    for arm, name in sorted(names.items()):
        shown = shortened(name, int((WIDTH - SAMPLE - 8.0) / CHARACTER))
        wide = SAMPLE + 6.0 + CHARACTER * len(shown)
        if rows[-1] and edge + wide > WIDTH:
            rows.append([])
            edge = 0.0
        rows[-1].append((edge, arm, shown))
        edge += wide + GAP
    return rows
