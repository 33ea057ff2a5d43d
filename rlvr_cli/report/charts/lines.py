"""Draw panels of lines with bands: colours, dashes and markers by arm, names at the lines' ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlvr_cli.charts.figure import DASHES
from rlvr_cli.charts.lines import Extent, Line, Panel, XAxis, YAxis
from rlvr_cli.core.text import shortened
from rlvr_cli.report.charts.svg import (
    FONT,
    GRID,
    MUTED,
    PAPER,
    SERIES,
    WIDTH,
    PanelReadings,
    Readings,
    new_figure,
    of_arm,
    percent_tick,
    tick,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ARMS = len(SERIES)
# With fewer runs the interval of their mean is so wide that a chart would show nothing else.
BAND_FROM = 5
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
_LEFT, _RIGHT, _TOP, _BOTTOM, _TICKS = 48.0, 12.0, 24.0, 38.0, 24.0
_HEIGHT, _SMALL_HEIGHT, _FLAT_HEIGHT = 200.0, 110.0, 40.0
_BESIDE: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
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
# Of the title of one of two panels next to each other.
MOST_TITLE = int((WIDTH / 2 - 6.0) / CHARACTER)
# A chart is some 400 columns wide; two points each for the least and the greatest in a stretch of two columns.
STRETCHES = 200
# Of a line, that a pointer meets.
_MOST_READ = 200


def draw_panels(
    panels: Sequence[Panel], x: XAxis, y: YAxis, scales: Sequence[Extent], *, named: bool, marked: bool = False
) -> tuple[Figure, tuple[PanelReadings, ...]]:
    """The figure, and what can be read off its lines; two panels in a row. Must be called inside ``svg.page_style()``.

    Args:
        scales: of the panels' heights.
        named: whether arms are: at the lines' ends in a single panel, if their names are short, else above.
        marked: whether points carry markers.
    """
    from matplotlib.figure import Figure

    alone = len(panels) == 1
    names = {line.arm: line.name for panel in panels for line in panel.lines}
    flat = all((y == 0).all() for panel in panels for line in panel.lines for _, y in line.curves)
    tall = _FLAT_HEIGHT if flat else _HEIGHT if alone else _SMALL_HEIGHT
    beside = named and alone and fit_beside(list(names.values()), tall)
    legend = legend_rows(names) if named and not beside else []
    titled = not alone
    head = ROW * (len(legend) + titled) + (4.0 if legend or titled else 0.0)
    columns = 1 if alone else 2
    rows = math.ceil(len(panels) / columns)
    # Only the lowest row says what the axis is of.
    each = _TOP + tall + _TICKS
    height = head + rows * each + _BOTTOM - _TICKS
    figure = Figure(figsize=(WIDTH / 72, height / 72))
    read = []
    right = width_beside(list(names.values())) if beside else _RIGHT
    wide = WIDTH / columns - _LEFT - right
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        left, bottom = column * WIDTH / columns + _LEFT, height - head - (row + 1) * each + _TICKS
        # A panel of one arm alone goes with it.
        own = of_arm(panel.lines[0].arm) if len(panel.lines) == 1 and panel.lines[0].look is not None else {}
        axes = figure.add_axes((left / WIDTH, bottom / height, wide / WIDTH, tall / height), **own)
        _scale_y(axes, scales[place], y, small=not alone)
        _panel(axes, panel, x, y, marked=marked, small=not alone)
        if place + columns >= len(panels):
            axes.annotate(x.label, (1, 0), (0, -22), va="top", ha="right", **_BESIDE)
        if beside:
            _name_ends(axes, panel.lines, x.divide, tall)
        read.append(_readings(axes, panel, x, y))
    _legend(figure, legend, height, marked=marked)
    if titled:
        figure.text(0, 1 - (len(legend) + 0.6) * ROW / height, y.label, va="center", color=MUTED)
    return figure, tuple(read)


def _readings(axes: Axes, panel: Panel, x: XAxis, y: YAxis) -> PanelReadings:
    """The points of a panel's lines and their values in words, in the units of the picture."""
    figure = axes.figure
    size = np.array([WIDTH, 72 * figure.get_figheight()])  # type: ignore[union-attr]
    place = axes.transData + figure.transFigure.inverted()
    box = axes.get_position()
    lines = []
    for line in panel.lines:
        if not len(line.x):
            continue
        few = np.unique(np.linspace(0, len(line.x) - 1, min(_MOST_READ, len(line.x))).round().astype(int))
        shares = place.transform(np.column_stack([line.x[few] / x.divide, line.mean[few]]))
        across, down = (shares[:, 0] * size[0]).round(1).tolist(), ((1 - shares[:, 1]) * size[1]).round(1).tolist()
        at = tuple(f"{line.x[one] / x.divide:,.6g}" for one in few)
        said = tuple(_said(line, int(one), share=y.share) for one in few)
        lines.append(Readings(line.arm, line.name, tuple(across), tuple(down), at, said))
    frame = (box.x0 * size[0], (1 - box.y1) * size[1], box.x1 * size[0], (1 - box.y0) * size[1])
    left, top, right, bottom = (round(float(edge), 1) for edge in frame)
    return PanelReadings(panel.title, x.label, (left, top, right, bottom), tuple(lines))


def _said(line: Line, place: int, *, share: bool) -> str:
    """`41.2% (38.1% to 44.0%)`, or of few runs `41.2% (runs: 40.1%, 42.3%)`."""
    ends = [part[place] for part in (line.low, line.high) if part is not None and np.isfinite(part[place])]
    value, *around = (new_figure(float(one), share=share) for one in (line.mean[place], *ends))
    if not (line.few and line.singles):
        return f"{value} ({' to '.join(around)})" if around else value
    own = [new_figure(float(y[x == line.x[place]][0]), share=share) for x, y in line.singles if line.x[place] in x]
    return f"{value} (runs: {', '.join(own)})" if own else value


def _panel(axes: Axes, panel: Panel, x: XAxis, y: YAxis, *, marked: bool, small: bool) -> None:
    _scale_x(axes, panel, x, small=small)
    if panel.context is not None:
        at, bottom, top = panel.context
        axes.fill_between(at / x.divide, bottom, top, color=MUTED, alpha=0.18, linewidth=0)
    for line in panel.lines:
        _draw_line(axes, line, x.divide, len(panel.lines), marked=marked)
    # Above the bands, so that it can be seen wherever it lies.
    axes.axhline(0.0, color=MUTED, linewidth=0.8, zorder=1.5)
    label = shortened(panel.title, MOST_TITLE) if panel.title else y.label
    axes.annotate(label, (0, 1), (-_LEFT, 9), va="bottom", **_BESIDE)


def _draw_line(axes: Axes, line: Line, divide: float, crowd: int, *, marked: bool) -> None:
    """``crowd``: lines in the panel."""
    place = line.arm if line.look is None else line.look
    colour, dashes, own = SERIES[place % MOST_ARMS], DASHES[place % MOST_ARMS], of_arm(line.arm)
    for at, heights in line.singles:
        few = kept(heights)
        axes.plot(at[few] / divide, heights[few], color=colour, linewidth=0.8, alpha=0.55, **own)
    if line.raw is not None:
        at, heights = line.raw
        few = kept(heights)
        axes.plot(at[few] / divide, heights[few], color=colour, linewidth=0.7, alpha=0.35, **own)
    ends = [part for part in (line.low, line.high) if part is not None]
    few = kept(line.mean, *ends)
    if line.low is not None and line.high is not None and len(few) and not line.few:
        at, low, high = line.x[few] / divide, line.low[few], line.high[few]
        light = 0.17 if crowd <= 3 else 0.1
        axes.fill_between(at, low, high, where=np.isfinite(low), color=colour, alpha=light, linewidth=0, **own)
        for end in (low, high) if crowd > 1 else ():
            # Where bands lie on one another, their edges tell them apart.
            light = 0.6 if crowd <= 3 else 0.35
            axes.plot(at, end, color=colour, linewidth=0.6, alpha=light, linestyle=dashes, **own)
        known = np.concatenate([[False], np.isfinite(low), [False]])
        # A band needs two points next to one another.
        lone = known[1:-1] & ~known[:-2] & ~known[2:]
        if lone.any():
            axes.vlines(at[lone], low[lone], high[lone], color=colour, linewidth=4, alpha=0.35, **own)
    look: dict[str, Any] = {"color": colour, "linewidth": 1.8, "linestyle": dashes, **own}
    if marked or len(few) == 1:
        look |= marker(place)
    axes.plot(line.x[few] / divide, line.mean[few], zorder=2.5, **look)


def marker(arm: int) -> dict[str, Any]:
    """The marker of an arm, as matplotlib's keywords."""
    return {"marker": MARKERS[arm % MOST_ARMS], "markersize": 5.5, "markeredgecolor": PAPER, "markeredgewidth": 0.7}


def _scale_x(axes: Axes, panel: Panel, x: XAxis, *, small: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    xs = [at for line in panel.lines for at, _ in line.curves if len(at)]
    first, last = min(float(at[0]) for at in xs) / x.divide, max(float(at[-1]) for at in xs) / x.divide
    if x.ticks is not None:
        axes.set_xscale("log", base=2)
        axes.set_xlim(first / 1.06, last * 1.06)
        shown = [one for one in x.ticks if one != x.ticks[-2] or one * 1.4 < x.ticks[-1] or len(x.ticks) < 3]
        axes.set_xticks(shown, [str(one) for one in shown])
        axes.minorticks_off()
        return
    # A training begins with nothing spent, also where nothing was measured there.
    axes.set_xlim(0.0, last)
    whole = last >= 4 and x.divide == 1
    axes.xaxis.set_major_locator(MaxNLocator(3 if small else 6, integer=whole, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.grid(visible=False, axis="x")


def _scale_y(axes: Axes, extent: Extent, y: YAxis, *, small: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, SymmetricalLogLocator

    if extent.low == extent.high:
        axes.set_ylim(-0.4, 1.0)
        axes.set_yticks([0.0])
    elif extent.linear is None:
        axes.yaxis.set_major_locator(MaxNLocator(4 if small else 5, steps=[1, 2, 2.5, 5, 10]))
    else:
        axes.set_yscale("symlog", linthresh=extent.linear, linscale=0.6)
        locator = SymmetricalLogLocator(base=10, linthresh=extent.linear)
        locator.set_params(numticks=6)
        axes.yaxis.set_major_locator(locator)
    if extent.low < extent.high:
        axes.set_ylim(extent.low, extent.high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: percent_tick(value) if y.share else tick(value)))
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_color(GRID)


def _name_ends(axes: Axes, lines: Sequence[Line], divide: float, tall: float) -> None:
    """Each arm's name at the right, with a piece of its line that leads from where its longest curve ends."""
    to_share = axes.transData + axes.transAxes.inverted()
    ends = []
    for line in lines:
        # Of curves that go equally far, the first: the mean.
        at, heights = max((curve for curve in line.curves if len(curve[0])), key=lambda curve: float(curve[0][-1]))
        ends.append(to_share.transform((at[-1] / divide, heights[-1])))
    wide = axes.get_position().width * WIDTH
    places = spread_labels([tall * float(y) for _, y in ends], APART, tall)
    for line, (x, y), place in zip(lines, ends, places, strict=True):
        colour = SERIES[line.arm % MOST_ARMS]
        own = of_arm(line.arm)
        look: dict[str, Any] = {"color": colour, "transform": axes.transAxes, "clip_on": False, **own}
        if x < 0.97:
            axes.plot([x, 1.0], [y, y], linewidth=0.5, alpha=0.6, **look)
        lead = [1 + 3 / wide, 1 + SAMPLE / wide], [y, place / tall]
        axes.plot(*lead, linewidth=1.6, linestyle=DASHES[line.arm % MOST_ARMS], **look)
        axes.annotate(line.name, (1, place / tall), (SAMPLE + 4.0, 0), va="center", **_BESIDE, **own)


def _legend(figure: Figure, rows: Sequence[Sequence[tuple[float, int, str]]], height: float, *, marked: bool) -> None:
    from matplotlib.lines import Line2D

    for row, entries in enumerate(rows):
        at = 1 - (row + 0.6) * ROW / height
        for left, arm, name in entries:
            ends = [(left + 2) / WIDTH, (left + SAMPLE) / WIDTH]
            colour, own = SERIES[arm % MOST_ARMS], of_arm(arm)
            figure.add_artist(
                Line2D(ends, [at, at], linewidth=1.8, color=colour, linestyle=DASHES[arm % MOST_ARMS], **own)
            )
            if marked:
                middle = Line2D([sum(ends) / 2], [at], color=colour, linestyle="none", **marker(arm), **own)
                figure.add_artist(middle)
            figure.text((left + SAMPLE + 5) / WIDTH, at, name, va="center", **own)


def fit_beside(names: Sequence[str], tall: float) -> bool:
    """Whether names are short and few enough to stand at the ends of lines in a chart ``tall`` units high."""
    return max(map(len, names)) <= _MOST_BESIDE and (len(names) - 1) * APART <= tall


def width_beside(names: Sequence[str]) -> float:
    """What names take at the right of a chart."""
    return SAMPLE + 6.0 + CHARACTER * max(map(len, names))


def spread_labels(wanted: Sequence[float], gap: float, highest: float) -> list[float]:
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


def kept(*heights: np.ndarray) -> np.ndarray:
    """Indices of the points to draw, all where they are few.

    The points are cut into 200 stretches of equally many; of each, the first, the last, and the least and the greatest
    of every one of ``heights`` are kept. What is NaN is neither.
    """
    count = len(heights[0])
    if count <= 4 * STRETCHES:
        return np.arange(count)
    chosen: set[int] = set()
    for part in np.array_split(np.arange(count), STRETCHES):
        chosen |= {int(part[0]), int(part[-1])}
        for values in heights:
            piece = values[part]
            if np.isfinite(piece).any():
                chosen |= {int(part[np.nanargmin(piece)]), int(part[np.nanargmax(piece)])}
    return np.array(sorted(chosen))
