"""Charts of a report in Vega-Lite: panels of lines, rows of values, and readings for the tooltip."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlvr_cli.charts.figure import INK, MUTED, PAPER, colour, dash, render_svg, text_colour
from rlvr_cli.charts.lines import Extent, Line, Panel, XAxis, YAxis
from rlvr_cli.core.text import shorten

WIDTH = 460.0
# With more arms only means are drawn.
MOST_ARMS = 8
# Fewest runs with a band: with fewer, the interval would dominate the chart.
BAND_FROM = 5
# Characters of an arm's name in a legend and in a row.
MOST_SHOWN, MOST_IN_ROW = 60, 40
_MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 14.0, 26.0, 38.0
_HEIGHT, _SMALL_HEIGHT, _FLAT_HEIGHT = 200.0, 110.0, 40.0
# Segments of a long line, each drawn by its ends, minimum and maximum: at most 100 points.
SEGMENTS = 25
# Readings per line.
_MOST_READ = 100
_TICK = "abs(datum.value) >= 10000 ? format(datum.value, '~s') : format(datum.value, '.4~g')"
_PERCENT = "format(datum.value, '.3~%')"
# A value of a Vega-Lite specification.
Spec = dict[str, Any]
Frame = tuple[float, float, float, float]


@dataclass(frozen=True)
class Readings:
    """A line's points for the tooltip: ``x`` and ``y`` in SVG units, ``at`` and ``values`` the same as text."""

    arm: int
    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    at: tuple[str, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class DrawnPanel:
    """A rendered panel.

    Attributes:
        svg: an `<svg>` element. axis: label of x. lines: readings for the tooltip; none for rows.
        frame: left, top, right, bottom of the plot in SVG units.
    """

    title: str
    svg: str
    axis: str = ""
    frame: Frame = (0.0, 0.0, 0.0, 0.0)
    lines: tuple[Readings, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A chart with its caption and data.

    Attributes:
        key: unique in a page; letters, digits and hyphens.
        sentences: of the caption, plain text.
        table: header and rows of the data as text.
        arms: index and name of each arm in the legend.
    """

    key: str
    title: str
    panels: tuple[DrawnPanel, ...]
    sentences: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    arms: tuple[tuple[int, str], ...] = ()


def format_value(value: float | None, *, share: bool) -> str:
    """Format a share in percent with one decimal, another number with four digits; `-` if not finite."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:.1f}%" if share else f"{value:.4g}"


def legend(panels: Sequence[Panel], arms: int) -> tuple[tuple[int, str], ...]:
    """Return index and name of each arm of the panels; empty for a single arm or too many."""
    names = {line.arm: line.name for panel in panels for line in panel.lines}
    return tuple(sorted(names.items())) if 1 < arms <= MOST_ARMS else ()


def draw_panels(
    title: str, panels: Sequence[Panel], x: XAxis, y: YAxis, scales: Sequence[Extent], *, marked: bool = False
) -> tuple[DrawnPanel, ...]:
    """Draw each panel with its extent; ``marked``: with a marker at each point."""
    small = len(panels) > 1
    return tuple(
        _draw_panel(title, panel, x, y, extent, small=small, marked=marked)
        for panel, extent in zip(panels, scales, strict=True)
    )


def _draw_panel(
    title: str, panel: Panel, x: XAxis, y: YAxis, extent: Extent, *, small: bool, marked: bool
) -> DrawnPanel:
    flat = all((heights == 0).all() for line in panel.lines for _, heights in line.curves)
    width = (WIDTH / 2 if small else WIDTH) - _LEFT - _RIGHT
    height = _FLAT_HEIGHT if flat else _SMALL_HEIGHT if small else _HEIGHT
    low, high = (-0.4, 1.0) if extent.low == extent.high else (extent.low, extent.high)
    ends, rows = _x_domain(panel, x), _point_rows(panel, x, marked=marked)
    picture = _make_spec(title if not panel.title else f"{title}, {panel.title}", width, height, (_LEFT, _TOP, _BOTTOM))
    picture["layer"] = _make_layers(
        panel, rows, _x_channel(x, ends, small), _y_channel(panel, y, extent, low, high, small)
    )
    frame = (_LEFT, _TOP, _LEFT + width, _TOP + height)
    across, up = _make_scale(*ends, log=x.ticks is not None), _make_scale(low, high, extent.linear)
    lines = tuple(_make_readings(line, x, frame, across, up, share=y.share) for line in panel.lines if len(line.x))
    return DrawnPanel(panel.title, render_svg(picture, rows), x.label, frame, lines)


def _make_spec(title: str, width: float, height: float, margins: tuple[float, float, float]) -> Spec:
    start, top, bottom = margins
    return {
        "description": title,
        "width": width,
        "height": height,
        "autosize": {"type": "none"},
        "padding": {"left": start, "right": _RIGHT, "top": top, "bottom": bottom},
    }


def _quantity(field: str, scale: Spec, axis: Spec | None) -> Spec:
    return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}


def _category(field: str, **rest: Any) -> Spec:
    return {"field": field, "type": "nominal", **rest}


def _x_channel(x: XAxis, ends: tuple[float, float], small: bool) -> Spec:
    scale: Spec = {"domain": list(ends), "nice": False}
    axis: Spec = {"title": x.label, "titleAnchor": "end", "titleY": 22, "titleBaseline": "top", "grid": False}
    axis |= {"labelExpr": _TICK, "tickCount": 3 if small else 6}
    if x.ticks:
        scale |= {"type": "log", "base": 2}
        axis["values"] = list(x.ticks)
    if x.divide == 1:
        axis["tickMinStep"] = 1
    return _quantity("x", scale, axis)


def _y_channel(panel: Panel, y: YAxis, extent: Extent, low: float, high: float, small: bool) -> Spec:
    scale: Spec = {"type": "linear", "domain": [low, high], "nice": False, "zero": False, "clamp": True}
    axis: Spec = {"title": shorten(panel.title, 36) if panel.title else y.label, "titleAngle": 0}
    axis |= {"titleAlign": "left", "titleBaseline": "bottom", "titleX": 8 - _LEFT, "titleY": -8}
    axis |= {"domain": False, "ticks": False, "labelExpr": _PERCENT if y.share else _TICK}
    if extent.linear:
        scale |= {"type": "symlog", "constant": extent.linear}
        powers = range(round(math.log10(extent.linear)), 1 + math.floor(math.log10(high)))
        axis["values"] = [0.0, *(10.0**power for power in powers[:: 1 + len(powers) // 7])]
    elif extent.low == extent.high:
        axis["values"] = [0.0]
    else:
        axis["tickCount"] = 3 if small else 5
    return _quantity("y", scale, axis)


def _x_domain(panel: Panel, x: XAxis) -> tuple[float, float]:
    ends = [
        (float(at[0]) / x.divide, float(at[-1]) / x.divide) for line in panel.lines for at, _ in line.curves if len(at)
    ]
    first, last = min(start for start, _ in ends), max(end for _, end in ends)
    # A budget starts at 0, even if nothing was measured there.
    return (first / 1.06, last * 1.06) if x.ticks else (0.0, last or 1.0)


def _make_scale(
    low: float, high: float, linear: float | None = None, *, log: bool = False
) -> Callable[[np.ndarray], Any]:
    """Return the function from values to their relative position on the axis, 0 to 1."""

    def transform(values: np.ndarray) -> np.ndarray:
        if log:
            values = np.log(values)
        elif linear:
            values = np.sign(values) * np.log1p(np.abs(values) / linear)
        return values

    start, end = transform(np.array([low, high]))
    return lambda values: np.clip((transform(values) - start) / (end - start), 0.0, 1.0)


def _point_rows(panel: Panel, x: XAxis, *, marked: bool) -> dict[str, list[dict[str, Any]]]:
    """Return the points of a panel by layer, a row each."""
    crowd = len(panel.lines) > MOST_ARMS
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("bands", "lone", "thin", "means", "dots")}
    for line in panel.lines:
        look = {"colour": colour(line.arm), "arm": line.arm}
        for number, (at, heights) in enumerate(() if crowd else line.singles):
            rows["thin"] += _points(at / x.divide, heights, thin(heights), look, f"{line.arm} {number}")
        if line.raw is not None and not crowd:
            rows["thin"] += _points(line.raw[0] / x.divide, line.raw[1], thin(line.raw[1]), look, f"{line.arm}")
        edges = [edge for edge in (line.low, line.high) if edge is not None]
        indices = thin(line.mean, *edges) if len(line.x) else np.zeros(0, int)
        rows["means"] += _points(line.x / x.divide, line.mean, indices, look, f"{line.arm}")
        if marked or len(indices) == 1:
            rows["dots"] += _points(line.x / x.divide, line.mean, indices, look, "")
        if line.low is not None and line.high is not None and not line.hide_band and not crowd:
            finite = np.concatenate([[False], np.isfinite(line.low[indices]), [False]])
            # A band requires two adjacent points.
            alone = finite[1:-1] & ~finite[:-2] & ~finite[2:]
            columns = np.stack([line.x / x.divide, line.low, line.high], axis=1)[indices].tolist()
            band = [{"x": at, "low": _or_none(low), "high": _or_none(high), **look} for at, low, high in columns]
            rows["bands"] += band if not alone.all() else []
            rows["lone"] += [row for row, single in zip(band, alone, strict=True) if single]
    return {"zero": [{"y": 0.0}], **{name: points for name, points in rows.items() if points}}


def _make_layers(panel: Panel, names: Collection[str], x: Spec, y: Spec) -> list[Spec]:
    """Return a layer per data set in ``names``, keys of :func:`_point_rows`, from back to front."""
    arms = sorted({line.arm for line in panel.lines})
    own = _category("colour", scale=None)
    band = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": own, "detail": _category("arm")}
    line = {"x": x, "y": y, "color": own, "detail": _category("run")}

    def by_arm(values: Sequence[Any]) -> Spec:
        return _category("arm", legend=None, scale={"domain": arms, "range": values})

    dashes, shapes = by_arm([dash(arm) for arm in arms]), by_arm([_MARKERS[arm % len(_MARKERS)] for arm in arms])
    crowd = len(panel.lines)
    marks = {
        "zero": ({"type": "rule", "color": MUTED, "strokeWidth": 0.8}, {"y": y}),
        "bands": ({"type": "area", "opacity": 0.17 if crowd <= 3 else 0.1}, band),
        "lone": ({"type": "rule", "strokeWidth": 4, "opacity": 0.35}, band),
        "thin": ({"type": "line", "strokeWidth": 0.8, "opacity": 0.5}, line),
        "means": ({"type": "line", "strokeWidth": 1.8 if crowd <= MOST_ARMS else 1.3}, {**line, "strokeDash": dashes}),
        "dots": (
            {"type": "point", "filled": True, "size": 42, "opacity": 1, "stroke": PAPER, "strokeWidth": 0.7},
            {**line, "shape": shapes, "fill": own},
        ),
    }
    return [
        {"data": {"name": name}, "mark": mark, "encoding": channels}
        for name, (mark, channels) in marks.items()
        if name in names
    ]


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _points(
    at: np.ndarray, heights: np.ndarray, indices: np.ndarray, look: dict[str, Any], run: str
) -> list[dict[str, Any]]:
    points = zip(at[indices].tolist(), heights[indices].tolist(), strict=True)
    return [{"x": x, "y": y, "run": run, **look} for x, y in points]


def _make_readings(
    line: Line,
    x: XAxis,
    frame: Frame,
    across: Callable[[np.ndarray], np.ndarray],
    up: Callable[[np.ndarray], np.ndarray],
    *,
    share: bool,
) -> Readings:
    indices = np.unique(np.linspace(0, len(line.x) - 1, min(_MOST_READ, len(line.x))).round().astype(int))
    start, top, end, bottom = frame
    xs = start + (end - start) * across(line.x[indices] / x.divide)
    ys = bottom - (bottom - top) * up(line.mean[indices])
    at = tuple(f"{value:,.6g}" for value in (line.x[indices] / x.divide).tolist())
    runs = [dict(zip(at.tolist(), y.tolist(), strict=True)) for at, y in line.singles] if line.hide_band else []
    values = tuple(_format_reading(line, index, runs, share=share) for index in indices.tolist())
    return Readings(line.arm, line.name, tuple(xs.round(1).tolist()), tuple(ys.round(1).tolist()), at, values)


def _format_reading(line: Line, index: int, runs: Sequence[Mapping[float, float]], *, share: bool) -> str:
    """Return `41.2% (38.1% to 44.0%)`, or with ``runs``, values by x, `41.2% (runs: 40.1%, 42.3%)`."""
    value = format_value(float(line.mean[index]), share=share)
    if runs:
        at = float(line.x[index])
        singles = [format_value(run[at], share=share) for run in runs if at in run]
        return f"{value} (runs: {', '.join(singles)})" if singles else value
    ends = [float(edge[index]) for edge in (line.low, line.high) if edge is not None and np.isfinite(edge[index])]
    return f"{value} ({' to '.join(format_value(end, share=share) for end in ends)})" if ends else value


def thin(*heights: np.ndarray) -> np.ndarray:
    """Return the indices of at most 100 points to draw.

    More points are split into 25 segments of equal size; of each, the first, the last, and the minimum and maximum of
    every array of ``heights`` are kept, NaN ignored.
    """
    count = len(heights[0])
    if count <= 4 * SEGMENTS:
        return np.arange(count)
    pairs = [
        (np.where(np.isnan(values), np.inf, values), np.where(np.isnan(values), -np.inf, values)) for values in heights
    ]
    chosen: set[int] = set()
    for segment in np.array_split(np.arange(count), SEGMENTS):
        first, after = int(segment[0]), int(segment[-1]) + 1
        chosen |= {first, after - 1}
        for least, most in pairs:
            chosen |= {first + int(least[first:after].argmin()), first + int(most[first:after].argmax())}
    return np.array(sorted(chosen))


@dataclass(frozen=True)
class Row:
    """A row of a dot plot; without ``value``, a heading.

    Attributes:
        arm: selects the colour. name, text: labels on the left and the right.
        value: of the dot, ``filled`` or hollow. low, high: ends of the error bar. start: of a second, hollow dot,
            joined to the first. marks: ticks.
    """

    arm: int | None
    name: str
    text: str = ""
    value: float | None = None
    filled: bool = True
    low: float | None = None
    high: float | None = None
    start: float | None = None
    marks: tuple[float, ...] = ()


def draw_rows(
    title: str,
    rows: Sequence[Row],
    domain: tuple[float, float],
    label: str,
    notes: tuple[str, str] = ("", ""),
    *,
    share: bool = False,
) -> DrawnPanel:
    """Draw a dot plot, each row below its labels; ``notes``: at the ends of the axis."""
    tops = np.cumsum([0.0, *(22.0 if row.value is None else 36.0 for row in rows)]).tolist()
    table = [
        {
            "words": top + 9,
            "at": top + 23,
            "name": row.name,
            "text": row.text,
            "value": row.value,
            "start": row.start,
            "low": row.low,
            "high": row.high,
            "marks": list(row.marks),
            "ink": INK if row.arm is None else text_colour(row.arm),
            "colour": colour(row.arm or 0),
            "fill": colour(row.arm or 0) if row.filled else PAPER,
        }
        for row, top in zip(rows, tops, strict=False)
    ]
    signed = domain[0] < 0 < domain[1] and not share
    tick = f"(datum.value > 0 ? '+' : '') + ({_TICK})" if signed else _PERCENT if share else _TICK
    axis = {"title": label, "labelExpr": tick, "tickCount": 6, "titlePadding": 6, "ticks": False, "domain": False}
    heights = {"domain": [tops[-1], 0.0], "nice": False}
    ink, own = _category("ink", scale=None), _category("colour", scale=None)

    def x(field: str) -> Spec:
        return _quantity(field, {"domain": list(domain), "nice": False, "clamp": True}, axis)

    def layer(mark: Spec, valid: str, **channels: Spec) -> Spec:
        channels = {"y": _quantity("at", heights, None), "color": own, **channels}
        return {"data": {"name": "rows"}, "mark": mark, "encoding": channels, "transform": [{"filter": valid}]}

    def text(field: str, at: float, valid: str, **mark: str) -> Spec:
        channels = {"x": {"value": at}, "y": _quantity("words", heights, None), "text": _category(field), "color": ink}
        return layer({"type": "text", "baseline": "middle", **mark}, valid, **channels)

    width = WIDTH - 2 * _RIGHT
    start, end = 2 - _RIGHT, width + _RIGHT - 2
    valued = "isValid(datum.value)"
    layers = [
        text("name", start, valued, align="left", fontWeight="normal"),
        text("name", start, f"!{valued}", align="left", fontWeight="bold"),
        text("text", end, valued, align="right", fontWeight="normal"),
    ]
    if signed:
        rule = {"type": "rule", "color": INK, "strokeWidth": 1}
        layers.insert(0, {"data": {"name": "zero"}, "mark": rule, "encoding": {"x": x("value")}})
    stroke: Spec = {"type": "tick", "orient": "vertical"}
    if any(row.low is not None for row in rows):
        line = layer({"type": "rule", "strokeWidth": 2}, "isValid(datum.low)", x=x("low"), x2={"field": "high"})
        mark = {**stroke, "thickness": 1.6, "size": 9}
        layers += [line, *(layer(mark, f"isValid(datum.{end})", x=x(end)) for end in ("low", "high"))]
    if any(row.marks for row in rows):
        marks = layer({**stroke, "thickness": 1.2, "size": 11, "opacity": 0.7}, "", x=x("marks"))
        layers.append({**marks, "transform": [{"flatten": ["marks"]}]})
    point: Spec = {"type": "point", "filled": True, "opacity": 1}
    if any(row.start is not None for row in rows):
        valid = "isValid(datum.start)"
        line = layer({"type": "rule", "strokeWidth": 1.4}, valid, x=x("start"), x2={"field": "value"})
        hollow = {**point, "fill": PAPER, "size": 55, "strokeWidth": 1.4}
        layers += [line, layer(hollow, valid, x=x("start"), stroke=own)]
    fill = _category("fill", scale=None)
    layers.append(layer({**point, "size": 60, "strokeWidth": 1.6}, valued, x=x("value"), fill=fill, stroke=own))
    data: dict[str, Any] = {"rows": table, "zero": [{"value": 0.0}]}
    for at, align, note in ((start, "left", notes[0]), (end, "right", notes[1])):
        if note:
            data[align] = [{"note": note}]
            mark = {"type": "text", "align": align, "baseline": "top", "color": MUTED}
            channels = {"x": {"value": at}, "y": {"value": tops[-1] + 24}, "text": _category("note")}
            layers.append({"data": {"name": align}, "mark": mark, "encoding": channels})
    picture = _make_spec(title, width, tops[-1], (_RIGHT, 6, 44))
    return DrawnPanel("", render_svg({**picture, "layer": layers}, data))
