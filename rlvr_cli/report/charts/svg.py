"""From matplotlib's SVG to one that stands in a page: its colours, its font, its width, and ids of its own."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from rlvr_cli.charts.figure import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours to draw with. Each stands for a variable of the page, which knows what is light, dark or paper.
INK, MUTED, GRID, PAPER = "#00010a", "#00020a", "#00030a", "#00040a"
SERIES = tuple(f"#0005{index:02x}" for index in range(8))
VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
    **{colour: f"var(--c{index})" for index, colour in enumerate(SERIES)},
}
# Units of the picture: pixels where it is shown at this width. On a narrow page they shrink to three quarters.
WIDTH = 460.0
FONT = 12.0

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile(r"#[0-9a-fA-F]{3,8}\b")
_ARM = re.compile(r"arm(\d+)")
_LOCAL = re.compile(r"url\(#([^)]+)\)")
_LONG = re.compile(r"-?\d+\.\d{3,}")
_SPACE = re.compile(r"\s+")
_SETTINGS: dict[Any, Any] = {
    "font.size": FONT,
    "svg.fonttype": "none",
    # A name from a run is no formula, whatever dollars it has.
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "figure.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": FONT,
    "ytick.labelsize": FONT,
    "xtick.major.size": 3.0,
    "ytick.major.size": 0.0,
    "lines.solid_capstyle": "round",
}
_MINUS = "\N{MINUS SIGN}"


def of_arm(arm: int) -> dict[str, Any]:
    """Keywords of an artist that belongs to one arm: its element gets `data-arm`, by which a page can hide it."""
    return {"gid": f"arm{arm}"}


@contextmanager
def page_style() -> Iterator[None]:
    """Within it, figures are drawn for :func:`page_svg`: with the colours above and no others."""
    import matplotlib

    with style():
        matplotlib.rcParams.update(_SETTINGS)
        yield


def page_svg(figure: Figure, key: str, title: str, description: str) -> str:
    """The figure as an `<svg>` element. Must be called inside :func:`page_style`.

    Its width is that of its place on the page. ``key`` begins every id in it; ``title`` and ``description`` are for
    those who hear it. Raises ValueError for a colour that the page does not know.
    """
    picture = io.BytesIO()
    with warnings.catch_warnings():
        # The page's font draws the text, and may well have what matplotlib's has not.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(picture.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    used = {reference for element in root.iter() for reference in _references(element)}
    names = {name: f"{key}-{number}" for number, name in enumerate(sorted(used), start=1)}
    for element in root.iter():
        _adapt(element, names)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib.update(
        {
            "role": "img",
            "aria-labelledby": f"{key}-title {key}-desc",
            "style": "stroke-linejoin: round; stroke-linecap: butt; font-family: inherit",
        }
    )
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        spoken = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{key}-{tag}"})
        spoken.text = text
        root.insert(place, spoken)
    ElementTree.register_namespace("", _SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _references(element: ElementTree.Element) -> Iterator[str]:
    """The ids that an element points to."""
    if _XLINK in element.attrib:
        yield element.attrib[_XLINK].removeprefix("#")
    for value in element.attrib.values():
        yield from _LOCAL.findall(value)


def _adapt(element: ElementTree.Element, names: dict[str, str]) -> None:
    """Rename ids and drop those that nothing points to, replace colours and fonts, round what no eye can see."""
    attributes = element.attrib
    own = attributes.pop("id", "")
    if own in names:
        attributes["id"] = names[own]
    elif arm := _ARM.fullmatch(own):
        attributes["data-arm"] = arm[1]
    if _XLINK in attributes:
        attributes["href"] = f"#{names[attributes.pop(_XLINK).removeprefix('#')]}"
    for name, value in attributes.items():
        if "url(#" in value:
            attributes[name] = _LOCAL.sub(lambda match: f"url(#{names[match[1]]})", value)
        elif name == "d":
            attributes[name] = _path(value)
        elif name in ("x", "y", "transform", "width", "height"):
            attributes[name] = _LONG.sub(_rounded, value)
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if "style" in attributes:
        parts = [part.strip() for part in attributes["style"].split(";")]
        kept = [_LONG.sub(_rounded, _themed(part)) for part in parts if part and not part.startswith("font-family")]
        attributes["style"] = "; ".join(kept)
    if not element.tag.endswith(("text", "tspan")):
        element.text = None
    element.tail = None


def _themed(declaration: str) -> str:
    name, _, value = declaration.partition(":")
    return declaration if "url(" in value else f"{name}:{_COLOUR.sub(_variable, value)}"


def _variable(match: re.Match[str]) -> str:
    if match[0] not in VARIABLES:
        raise ValueError(f"{match[0]} is no colour of the page")
    return VARIABLES[match[0]]


def _path(value: str) -> str:
    """Pairs of numbers that follow a move are lines without saying so."""
    short = _SPACE.sub(" ", _LONG.sub(_coarse, value)).strip()
    return short if "C" in short or "Q" in short else short.replace(" L ", " ")


def _coarse(match: re.Match[str]) -> str:
    return f"{float(match[0]):.1f}".removesuffix(".0")


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


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
class PanelReadings:
    """``frame``: left, top, right, bottom of the panel in the units of the picture; ``axis``: what x is."""

    title: str
    axis: str
    frame: tuple[float, float, float, float]
    lines: tuple[Readings, ...]


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        key: its name among the figures of a page; letters, digits and hyphens.
        title: what it shows, in a few words.
        svg: an `<svg>` element without size, with the page's colours as CSS variables and ids that begin with ``key``.
        sentences: of the caption, plain text: what lines and bands are, how many runs, what was left out.
        table: a header and rows, the numbers of the chart as text. panels: what can be read off its lines.
    """

    key: str
    title: str
    svg: str
    sentences: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    panels: tuple[PanelReadings, ...] = ()

    @property
    def caption(self) -> str:
        """All of the caption."""
        return " ".join(self.sentences)


def tick(value: float) -> str:
    """A few digits: `0.2`, `40`, `12k`, `1.5M`, `2.5e-4`."""
    size = abs(value)
    if 0 < size < 1e-3:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if limit <= size < 1e13:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f"{value:.4g}".replace("-", _MINUS)


def percent_tick(value: float) -> str:
    """A share as `40%`."""
    return f"{100 * value:.4g}%".replace("-", _MINUS)


def new_figure(value: float | None, *, share: bool) -> str:
    """A number of a table: a share in percent with one decimal, other numbers with four digits; `-` for none."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:.1f}%" if share else f"{value:.4g}"
