"""The picture of `rlvr analyze landscape`: a panel a number, a line an arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlvr_cli.analysis.landscape import Course
from rlvr_cli.core.text import told_apart
from rlvr_cli.report.charts.lines import DASHES
from rlvr_cli.results.figure import COLOURS
from rlvr_cli.results.lines import ArmLine, Panel, YAxis, arm_line, extent
from rlvr_cli.runs.curves import HELD_OUT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3
MOST_NAME = 60
# A panel: its axis, and the curves in it, the second of them dashed.
_ALWAYS: dict[tuple[str, ...], YAxis] = {
    ("accuracy",): YAxis("accuracy of the rollout", share=True),
    ("length",): YAxis("length, tokens"),
    ("entropy",): YAxis("entropy, nats a token"),
    ("gradient norm",): YAxis("gradient norm", wide=True),
}
# Where some run has values that are not all 0.
_WHERE_KNOWN: dict[tuple[str, ...], YAxis] = {
    ("probability distance",): YAxis(r"mean $|\pi - \pi_\mathrm{old}|$"),
    ("ratio distance",): YAxis("√ mean (r - 1)²", wide=True),
    ("KL to reference",): YAxis("KL(π ‖ reference), nats", wide=True),
    ("clip share",): YAxis("share clipped", share=True),
    ("truncated",): YAxis("share truncated", share=True),
    (HELD_OUT,): YAxis("held-out accuracy", share=True),
    ("value of correct", "value of incorrect"): YAxis("predicted value (dashed: if wrong)", floor=False),
}
_DASHED = (0, (4, 2))


def landscape_figure(arms: Mapping[str, Sequence[Course]]) -> Figure:
    """A panel for each number that some run has. Must be called inside ``results.figure.style()``."""
    from matplotlib.figure import Figure

    courses = [found for group in arms.values() for found in group]
    moved = [
        names
        for names in _WHERE_KNOWN
        if any(value for found in courses for name in names for _, value in found.curves[name].points)
    ]
    axes_of = {**_ALWAYS, **{names: _WHERE_KNOWN[names] for names in moved}}
    rows = -(-len(axes_of) // COLUMNS)
    shown = told_apart(list(arms), MOST_NAME)
    figure = Figure(figsize=(11.0, 2.5 * rows + 0.5 + 0.18 * len(arms)), layout="constrained")
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    for axes, (names, scale) in zip(grid.flat, axes_of.items(), strict=False):
        _panel(axes, names, scale, arms)
    for axes in grid.flat[len(axes_of) :]:
        axes.set_visible(False)
    _legend(figure, list(shown.values()))
    return figure


def _panel(axes: Any, names: Sequence[str], scale: YAxis, arms: Mapping[str, Sequence[Course]]) -> None:
    axes.set_title(scale.label)
    axes.set_xlabel("rollout")
    lines = []
    for second, name in enumerate(names):
        for place, (arm, group) in enumerate(arms.items()):
            look = {**_look(place), **({"linestyle": _DASHED} if second else {})}
            curves = [_points(found, name) for found in group if found.curves[name].points]
            found = arm_line(place, arm, curves, scale, alone=len(arms) == 1, intervals=[None] * len(curves))
            if found is not None:
                # Of two runs no band is drawn, and none takes room.
                lines.append(replace(found.line, low=None, high=None) if found.line.faint else found.line)
                _draw(axes, found, look)
            if name in ("accuracy", "length"):
                _mark(axes, group, name, look)
    height = extent([Panel(scale.label, tuple(lines))], scale)
    if height.linear is not None:
        axes.set_yscale("symlog", linthresh=height.linear)
    if height.high > height.low:
        axes.set_ylim(height.low, height.high)


def _points(found: Course, name: str) -> tuple[np.ndarray, np.ndarray]:
    points = np.array(found.curves[name].points, dtype=np.float64)
    return points[:, 0] + 1, points[:, 1]


def _look(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place // len(COLOURS) % len(DASHES)]}


def _draw(axes: Any, found: ArmLine, look: dict[str, Any]) -> None:
    line = found.line
    for x, y in [*([line.raw] if line.raw is not None else []), *line.singles]:
        axes.plot(x, y, linewidth=0.6, alpha=0.5, **look)
    if line.low is not None and line.high is not None and not line.faint:
        axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.16, linewidth=0)
    axes.plot(line.x, line.mean, linewidth=1.5, **look)


def _mark(axes: Any, group: Sequence[Course], name: str, look: dict[str, Any]) -> None:
    """A cross on the run's own curve where its collapse was told."""
    for found in group:
        values = dict(found.curves[name].points)
        for collapse in found.collapses[:1]:
            if collapse.first in values:
                axes.plot(collapse.first + 1, values[collapse.first], "x", color=look["color"], markersize=6, zorder=5)


def _legend(figure: Any, names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linewidth=1.5, **_look(place)) for place in range(len(names))]
    handles.append(Line2D([], [], color="#555555", marker="x", linestyle="none"))
    columns = max(1, min(4, 150 // (max(map(len, names)) + 8)))
    figure.legend(handles, [*names, "collapse told"], loc="outside lower center", ncols=columns)
