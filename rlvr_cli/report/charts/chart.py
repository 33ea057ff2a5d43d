"""What a report's charts are made of: panels of lines, rows of values, and what a pointer reads of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlvr_cli.charts.figure import INK, MUTED, PAPER, colour, dash, svg, text_colour
from rlvr_cli.charts.lines import Extent, Line, Panel, XAxis, YAxis
from rlvr_cli.core.lazy import alt
from rlvr_cli.core.text import shortened

# Pixels where a picture is shown at this width; on a narrow page it shrinks to three quarters.
WIDTH = 460.0
# Of more arms the means alone are drawn.
MOST_ARMS = 8
# With fewer runs the interval of their mean is so wide that a chart would show nothing else.
BAND_FROM = 5
# Characters of an arm's name in a legend, in a row of a chart.
MOST_SHOWN, MOST_IN_ROW = 60, 40
_SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 14.0, 26.0, 38.0
_HEIGHT, _SMALL_HEIGHT, _FLAT_HEIGHT = 200.0, 110.0, 40.0
# Stretches of a line whose least and greatest points are drawn: with their ends 100 points at most.
STRETCHES = 25
# Of a line, that a pointer meets.
_MOST_READ = 100
_TICK = "abs(datum.value) >= 10000 ? format(datum.value, '~s') : format(datum.value, '.4~g')"
_PERCENT = "format(datum.value, '.3~%')"


@dataclass(frozen=True)
class Readings:
    """One line for a pointer: ``x`` and ``y`` in the units of the picture, ``at`` and ``said`` the same in words."""

    arm: int
    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    at: tuple[str, ...]
    said: tuple[str, ...]


@dataclass(frozen=True)
class DrawnPanel:
    """One picture of a chart.

    Attributes:
        svg: an `<svg>` element. axis: what x is. lines: what a pointer reads, none of a picture of rows.
        frame: left, top, right, bottom of the lines' place in the units of the picture.
    """

    title: str
    svg: str
    axis: str = ""
    frame: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    lines: tuple[Readings, ...] = ()


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        key: its name among the charts of a page; letters, digits and hyphens.
        title: what it shows, in a few words.
        panels: its pictures. arms: place and name of each arm that a legend must explain.
        sentences: of the caption, plain text: what lines and bands are, how many runs, what was left out.
        table: a header and rows, the numbers of the chart as text.
    """

    key: str
    title: str
    panels: tuple[DrawnPanel, ...]
    sentences: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    arms: tuple[tuple[int, str], ...] = ()

    @property
    def caption(self) -> str:
        """All of the caption."""
        return " ".join(self.sentences)


def new_figure(value: float | None, *, share: bool) -> str:
    """A number of a table: a share in percent with one decimal, other numbers with four digits; `-` for none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:.1f}%" if share else f"{value:.4g}"


def legend(panels: Sequence[Panel], arms: int) -> tuple[tuple[int, str], ...]:
    """Place and name of each arm of the panels; none where there is one, or more than a legend holds."""
    names = {line.arm: line.name for panel in panels for line in panel.lines}
    return tuple(sorted(names.items())) if 1 < arms <= MOST_ARMS else ()


def draw_panels(
    title: str, panels: Sequence[Panel], x: XAxis, y: YAxis, scales: Sequence[Extent], *, marked: bool = False
) -> tuple[DrawnPanel, ...]:
    """A picture of each panel; ``scales``: of their heights; ``marked``: whether points carry markers."""
    return tuple(
        _draw_panel(title, panel, x, y, scale, small=len(panels) > 1, marked=marked)
        for panel, scale in zip(panels, scales, strict=True)
    )


def _draw_panel(
    title: str, panel: Panel, x: XAxis, y: YAxis, extent: Extent, *, small: bool, marked: bool
) -> DrawnPanel:
    flat = all((heights == 0).all() for line in panel.lines for _, heights in line.curves)
    # Small panels are drawn side by side, with letters of the same size.
    wide = (WIDTH / 2 if small else WIDTH) - _LEFT - _RIGHT
    tall = _FLAT_HEIGHT if flat else _SMALL_HEIGHT if small else _HEIGHT
    low, high = (-0.4, 1.0) if extent.low == extent.high else (extent.low, extent.high)
    label = shortened(panel.title, 36) if panel.title else y.label
    kind: dict[str, Any] = {"type": "symlog", "constant": extent.linear} if extent.linear else {"type": "linear"}
    ticks: dict[str, Any] = {"values": [0.0]} if extent.low == extent.high else {"tickCount": 3 if small else 5}
    if extent.linear:
        powers = range(round(math.log10(extent.linear)), 1 + math.floor(math.log10(high)))
        ticks = {"values": [0.0, *(10.0**power for power in powers[:: 1 + len(powers) // 7])]}
    powers_of_2: dict[str, Any] = {"type": "log", "base": 2} if x.ticks else {}
    values: dict[str, Any] = {"values": list(x.ticks)} if x.ticks else {}
    whole: dict[str, Any] = {"tickMinStep": 1} if x.divide == 1 else {}
    across = alt.X(
        "x:Q",
        scale=alt.Scale(domain=_ends(panel, x), nice=False, **powers_of_2),
        axis=alt.Axis(
            title=x.label,
            titleAnchor="end",
            titleY=22,
            titleBaseline="top",
            grid=False,
            labelExpr=_TICK,
            tickCount=3 if small else 6,
            **values,
            **whole,
        ),
    )
    scale = alt.Scale(domain=[low, high], nice=False, zero=False, clamp=True, **kind)
    up = alt.Y(
        "y:Q",
        scale=scale,
        axis=alt.Axis(
            title=label,
            titleAngle=0,
            titleAlign="left",
            titleBaseline="bottom",
            titleX=8 - _LEFT,
            titleY=-8,
            domain=False,
            ticks=False,
            labelExpr=_PERCENT if y.share else _TICK,
            **ticks,
        ),
    )
    rows = _rows(panel, x, marked=marked)
    picture = alt.layer(*_layers(panel, rows, across, up)).properties(
        width=wide,
        height=tall,
        autosize=alt.AutoSizeParams(type="none"),
        padding={"left": _LEFT, "right": _RIGHT, "top": _TOP, "bottom": _BOTTOM},
        description=", ".join(filter(None, (title, panel.title))),
    )
    frame = (_LEFT, _TOP, _LEFT + wide, _TOP + tall)
    shares = _share([low, high], extent.linear), _share(_ends(panel, x), None, log=x.ticks is not None)
    lines = tuple(_readings(line, x, frame, *shares, share=y.share) for line in panel.lines if len(line.x))
    return DrawnPanel(panel.title, svg(picture, rows), x.label, frame, lines)


def _ends(panel: Panel, x: XAxis) -> list[float]:
    ends = [
        (float(at[0]) / x.divide, float(at[-1]) / x.divide) for line in panel.lines for at, _ in line.curves if len(at)
    ]
    first, last = min(start for start, _ in ends), max(end for _, end in ends)
    # A training begins with nothing spent, also where nothing was measured there.
    return [first / 1.06, last * 1.06] if x.ticks else [0.0, last or 1.0]


def _share(domain: list[float], linear: float | None, *, log: bool = False) -> Callable[[np.ndarray], np.ndarray]:
    """How far along its domain a value lies, from 0 to 1, on the scale that it is drawn with."""

    def bent(values: np.ndarray) -> np.ndarray:
        if log:
            values = np.log(values)
        elif linear:
            values = np.sign(values) * np.log1p(np.abs(values) / linear)
        return values

    low, high = bent(np.array(domain))
    return lambda values: np.clip((bent(values) - low) / (high - low), 0.0, 1.0)


def _rows(panel: Panel, x: XAxis, *, marked: bool) -> dict[str, list[dict[str, Any]]]:
    """What is drawn of a panel, a row for each point, by the layer that it is drawn in."""
    crowd = len(panel.lines)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("bands", "lone", "thin", "means", "dots")}
    for line in panel.lines:
        look = {"colour": colour(line.arm), "arm": line.arm}
        for number, (at, heights) in enumerate(line.singles if crowd <= MOST_ARMS else ()):
            rows["thin"] += _points(at / x.divide, heights, kept(heights), look, f"{line.arm} {number}")
        if line.raw is not None and crowd <= MOST_ARMS:
            rows["thin"] += _points(line.raw[0] / x.divide, line.raw[1], kept(line.raw[1]), look, f"{line.arm}")
        ends = [part for part in (line.low, line.high) if part is not None]
        few = kept(line.mean, *ends) if len(line.x) else np.zeros(0, int)
        rows["means"] += _points(line.x / x.divide, line.mean, few, look, f"{line.arm}")
        if marked or len(few) == 1:
            rows["dots"] += _points(line.x / x.divide, line.mean, few, look, "")
        if line.low is not None and line.high is not None and not line.few and crowd <= MOST_ARMS:
            known = np.concatenate([[False], np.isfinite(line.low[few]), [False]])
            # A band needs two points next to one another.
            alone = known[1:-1] & ~known[:-2] & ~known[2:]
            columns = np.stack([line.x / x.divide, line.low, line.high], axis=1)[few].tolist()
            band = [{"x": at, "low": _number(low), "high": _number(high), **look} for at, low, high in columns]
            rows["bands"] += band if not alone.all() else []
            rows["lone"] += [row for row, single in zip(band, alone, strict=True) if single]
    return {"zero": [{"y": 0.0}], **{name: own for name, own in rows.items() if own}}


def _layers(panel: Panel, names: Collection[str], across: Any, up: Any) -> list[alt.Chart]:
    """The layers of these ``names``, those of :func:`_rows`."""
    crowd, most = len(panel.lines), 1 + max(line.arm for line in panel.lines)
    low, high = alt.Y("low:Q", scale=up["scale"], axis=up["axis"]), alt.Y2("high:Q")

    def layer(name: str) -> alt.Chart:
        return alt.Chart(alt.NamedData(name)).encode(
            x=across, y=up, color=alt.Color("colour:N", scale=None), detail="run:N"
        )

    def shown(kind: Any, values: Sequence[Any]) -> Any:
        arms = sorted({line.arm for line in panel.lines})
        return kind("arm:N", legend=None, scale=alt.Scale(domain=arms, range=[values[one] for one in arms]))

    found = [alt.Chart(alt.NamedData("zero")).mark_rule(color=MUTED, strokeWidth=0.8).encode(y=up)]
    if "bands" in names:
        area = layer("bands").mark_area(opacity=0.17 if crowd <= 3 else 0.1)
        found.append(area.encode(y=low, y2=high, detail="arm:N"))
    if "lone" in names:
        found.append(layer("lone").mark_rule(strokeWidth=4, opacity=0.35).encode(y=low, y2=high, detail="arm:N"))
    if "thin" in names:
        found.append(layer("thin").mark_line(strokeWidth=0.8, opacity=0.5))
    if "means" in names:
        line = layer("means").mark_line(strokeWidth=1.8 if crowd <= MOST_ARMS else 1.3)
        found.append(line.encode(strokeDash=shown(alt.StrokeDash, [dash(arm) for arm in range(most)])))
    if "dots" in names:
        point = layer("dots").mark_point(filled=True, size=42, opacity=1, stroke=PAPER, strokeWidth=0.7)
        shape = shown(alt.Shape, [_SHAPES[arm % len(_SHAPES)] for arm in range(most)])
        found.append(point.encode(shape=shape, fill=alt.Fill("colour:N", scale=None)))
    return found


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _points(
    at: np.ndarray, heights: np.ndarray, few: np.ndarray, look: dict[str, Any], run: str
) -> list[dict[str, Any]]:
    return [{"x": x, "y": y, "run": run, **look} for x, y in zip(at[few].tolist(), heights[few].tolist(), strict=True)]


def _readings(
    line: Line,
    x: XAxis,
    frame: tuple[float, float, float, float],
    up: Callable[[np.ndarray], np.ndarray],
    across: Callable[[np.ndarray], np.ndarray],
    *,
    share: bool,
) -> Readings:
    """The points of a line and their values in words, in the units of the picture."""
    few = np.unique(np.linspace(0, len(line.x) - 1, min(_MOST_READ, len(line.x))).round().astype(int))
    left, top, right, bottom = frame
    xs = left + (right - left) * across(line.x[few] / x.divide)
    ys = bottom - (bottom - top) * up(line.mean[few])
    at = tuple(f"{line.x[one] / x.divide:,.6g}" for one in few)
    runs = [dict(zip(at.tolist(), y.tolist(), strict=True)) for at, y in line.singles] if line.few else []
    said = tuple(_said(line, int(one), runs, share=share) for one in few)
    return Readings(line.arm, line.name, tuple(xs.round(1).tolist()), tuple(ys.round(1).tolist()), at, said)


def _said(line: Line, place: int, runs: Sequence[Mapping[float, float]], *, share: bool) -> str:
    """`41.2% (38.1% to 44.0%)`, or of few ``runs``, heights by x, `41.2% (runs: 40.1%, 42.3%)`."""
    ends = [part[place] for part in (line.low, line.high) if part is not None and np.isfinite(part[place])]
    value, *around = (new_figure(float(one), share=share) for one in (line.mean[place], *ends))
    if not runs:
        return f"{value} ({' to '.join(around)})" if around else value
    at = float(line.x[place])
    singles = [new_figure(run[at], share=share) for run in runs if at in run]
    return f"{value} (runs: {', '.join(singles)})" if singles else value


def kept(*heights: np.ndarray) -> np.ndarray:
    """Indices of the points to draw, all where they are 100 at most.

    The points are cut into 25 stretches of equally many; of each, the first, the last, and the least and the greatest
    of every one of ``heights`` are kept. What is NaN is neither.
    """
    count = len(heights[0])
    if count <= 4 * STRETCHES:
        return np.arange(count)
    pairs = [
        (np.where(np.isnan(values), np.inf, values), np.where(np.isnan(values), -np.inf, values)) for values in heights
    ]
    chosen: set[int] = set()
    for part in np.array_split(np.arange(count), STRETCHES):
        first, after = int(part[0]), int(part[-1]) + 1
        chosen |= {first, after - 1}
        for least, most in pairs:
            chosen |= {first + int(least[first:after].argmin()), first + int(most[first:after].argmax())}
    return np.array(sorted(chosen))


@dataclass(frozen=True)
class Row:
    """A row of a picture of rows; without ``value`` a heading.

    Attributes:
        arm: whose it is; None = nobody's. name, text: at its left and its right.
        value: of the dot, ``full`` or hollow. low, high: ends of a line. start: of a second, hollow dot, joined to
            the first. marks: small strokes.
    """

    arm: int | None
    name: str
    text: str = ""
    value: float | None = None
    full: bool = True
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
    """A picture of rows: a line of words, and its dots and lines below; ``notes``: at the ends of the axis."""
    step, wide = 36.0, WIDTH - 2 * _RIGHT
    tops = np.cumsum([0.0, *(22.0 if row.value is None else step for row in rows)])
    table = [
        {
            "words": float(top) + 9,
            "at": float(top) + 23,
            "name": row.name,
            "text": row.text,
            "value": row.value,
            "start": row.start,
            "low": row.low,
            "high": row.high,
            "marks": list(row.marks),
            "ink": INK if row.arm is None else text_colour(row.arm),
            "colour": colour(row.arm or 0),
            "fill": colour(row.arm or 0) if row.full else PAPER,
        }
        for row, top in zip(rows, tops, strict=False)
    ]
    signed = domain[0] < 0 < domain[1] and not share
    tick = f"(datum.value > 0 ? '+' : '') + ({_TICK})" if signed else _PERCENT if share else _TICK
    axis = alt.Axis(title=label, labelExpr=tick, tickCount=6, titlePadding=6, ticks=False, domain=False)
    x = alt.X("value:Q", scale=alt.Scale(domain=list(domain), nice=False, clamp=True), axis=axis)
    heights = alt.Scale(domain=[float(tops[-1]), 0.0], nice=False)
    words = alt.Y("words:Q", scale=heights, axis=None)
    y = alt.Y("at:Q", scale=heights, axis=None)
    own, ink = alt.Color("colour:N", scale=None), alt.Color("ink:N", scale=None)
    base = alt.Chart(alt.NamedData("rows")).encode(y=y, color=own)
    valued = base.transform_filter("isValid(datum.value)").encode(x=x)
    spans = base.transform_filter("isValid(datum.low)").encode(
        x=alt.X("low:Q", scale=x["scale"], axis=axis), x2="high:Q"
    )
    zero = alt.Chart(alt.NamedData("zero")).mark_rule(color=INK, strokeWidth=1).encode(x=x)
    lettering: tuple[tuple[str, Literal["left", "right"], float, Literal["normal", "bold"], str], ...] = (
        ("name", "left", 2 - _RIGHT, "normal", "isValid(datum.value)"),
        ("name", "left", 2 - _RIGHT, "bold", "!isValid(datum.value)"),
        ("text", "right", wide + _RIGHT - 2, "normal", "isValid(datum.value)"),
    )
    texts = [
        base.transform_filter(which)
        .mark_text(align=side, baseline="middle", fontWeight=weight)
        .encode(x=alt.value(place), y=words, text=f"{key}:N", color=ink)
        for key, side, place, weight, which in lettering
    ]
    layers = [*([zero] if signed else []), *texts]
    if any(row.low is not None for row in rows):
        layers += [
            spans.mark_rule(strokeWidth=2),
            *(
                base.transform_filter(f"isValid(datum.{end})")
                .mark_tick(thickness=1.6, size=9, orient="vertical")
                .encode(x=alt.X(f"{end}:Q", scale=x["scale"], axis=axis))
                for end in ("low", "high")
            ),
        ]
    if any(row.marks for row in rows):
        small = base.transform_flatten(["marks"]).mark_tick(thickness=1.2, size=11, orient="vertical", opacity=0.7)
        layers.append(small.encode(x=alt.X("marks:Q", scale=x["scale"], axis=axis)))
    if any(row.start is not None for row in rows):
        started = base.transform_filter("isValid(datum.start)").encode(x=alt.X("start:Q", scale=x["scale"], axis=axis))
        layers += [
            started.mark_rule(strokeWidth=1.4).encode(x2="value:Q"),
            started.mark_point(filled=True, fill=PAPER, size=55, opacity=1, strokeWidth=1.4).encode(stroke=own),
        ]
    dots = valued.mark_point(filled=True, size=60, opacity=1, strokeWidth=1.6)
    layers.append(dots.encode(fill=alt.Fill("fill:N", scale=None), stroke=alt.Stroke("colour:N", scale=None)))
    ends: tuple[tuple[float, Literal["left", "right"], str], ...] = (
        (-_RIGHT + 2, "left", notes[0]),
        (wide + _RIGHT - 2, "right", notes[1]),
    )
    for place, align, note in ends:
        mark = alt.Chart(alt.NamedData(align)).mark_text(align=align, baseline="top", color=MUTED)
        layers += [mark.encode(x=alt.value(place), y=alt.value(float(tops[-1]) + 24), text="note:N")] if note else []
    picture = alt.layer(*layers).properties(
        width=wide,
        height=float(tops[-1]),
        autosize=alt.AutoSizeParams(type="none"),
        padding={"left": _RIGHT, "right": _RIGHT, "top": 6, "bottom": 44},
        description=title,
    )
    data: dict[str, Any] = {"rows": table, "zero": [{"value": 0.0}]}
    data |= {align: [{"note": note}] for _, align, note in ends}
    return DrawnPanel("", svg(picture, data))
