"""Render charts as SVG for a page, and write them to files: deterministic, atomic, offline."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import write_bytes
from rlvr_cli.core.lazy import alt

FORMATS = {".png": "png", ".svg": "svg"}
# Okabe and Ito's colour-blind safe palette, without yellow, too light for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
DASHES: tuple[tuple[float, ...], ...] = (
    (1, 0),
    (6, 2),
    (1.2, 1.6),
    (6, 2, 1.2, 2),
    (10, 2.5),
    (3, 1.5),
    (6, 1.6, 1.2, 1.6, 1.2, 1.6),
    (2, 3),
)
# CSS variables of a page (light, dark, print), and their values in a file.
INK, MUTED, GRID, PAPER = (f"var(--{name})" for name in ("ink", "muted", "grid", "paper"))
_FILE_COLOURS = {"ink": "#1b1f24", "muted": "#57606a", "grid": "#d8dce1", "paper": "#ffffff"}
_AXIS = {
    "domainColor": GRID,
    "tickColor": MUTED,
    "gridColor": GRID,
    "labelColor": INK,
    "titleColor": INK,
    "labelFontSize": 12,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
}
_CONFIG: dict[str, Any] = {
    "aria": False,
    "background": None,
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": _AXIS,
    "title": {"color": INK, "fontSize": 12, "fontWeight": "normal", "anchor": "start"},
    "header": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12},
    "legend": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12, "labelLimit": 0},
    "text": {"color": INK, "fontSize": 12},
    "rule": {"color": MUTED},
    "range": {"category": [f"var(--c{arm})" for arm in range(len(COLOURS))]},
}
_ARM_ELEMENT = re.compile(r'(<\w+)( [^<>]*?(?:fill|stroke)="var\(--[ct](\d+))')
# Removed from the SVG: empty paths, ARIA roles, classes of Vega.
_EMPTY = re.compile(
    r'<path class="(?:back|fore)ground"(?![^>]* (?:fill|stroke)=)[^>]*/>'
    r'| (?:aria-hidden|pointer-events|role|aria-roledescription|class)="[^"]*"| opacity="1"'
)
_VARIABLE = re.compile(r"var\(--(?:t\d+, var\(--(ink)\)|c(\d+)|(\w+))\)")


def check_path(path: Path) -> None:
    """Raise UserError unless a figure can be written to ``path``: suffix, folder, permission."""
    if path.suffix.lower() not in FORMATS:
        suffix = f"{path.suffix!r}" if path.suffix else "none"
        raise UserError(f"{path}: must end in .png or .svg; got {suffix}.")
    if path.is_dir():
        raise UserError(f"{path}: must be a file; got a folder.")
    if not path.parent.is_dir():
        raise UserError(f"{path}: no such folder: {path.parent}.")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path}: no write permission in {path.parent}.")


def colour(arm: int) -> str:
    return f"var(--c{arm})"


def text_colour(arm: int) -> str:
    return f"var(--t{arm}, {INK})"


def dash(arm: int) -> list[float]:
    """Return an arm's dash pattern; with its colour it is unique for the first 64 arms."""
    return list(DASHES[(arm + arm // len(COLOURS)) % len(DASHES)])


def render_svg(
    chart: alt.TopLevelMixin | dict[str, Any], rows: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
) -> str:
    """Render a chart as an `<svg>` element without size, ids and background, labelled by its description.

    Colours are CSS variables. Elements in :func:`colour` or :func:`text_colour` of an arm get `data-arm`, so that the
    page can hide them.

    Args:
        chart: an altair chart or a Vega-Lite specification.
        rows: name -> rows of a data set of the chart; altair would copy inline data in every layer.
    """
    import vl_convert

    if isinstance(chart, dict):
        spec = dict(chart)
    else:
        with alt.data_transformers.enable("default", max_rows=None):
            spec = chart.to_dict(validate=False)
    spec["datasets"] = {**spec.get("datasets", {}), **(rows or {})}
    config = spec.get("config", {})
    spec["config"] = {**config, **_CONFIG}
    for key, value in config.items():
        if isinstance(value, dict):
            spec["config"][key] = {**value, **_CONFIG.get(key, {})}
    label = escape(spec.pop("description", "") or "chart")
    text = vl_convert.vegalite_to_svg(spec, vl_version="6.4")
    size = re.search(r'viewBox="[^"]*"', text)
    body = text[text.index(">") + 1 :]
    box = size[0] if size else ""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {box}>'
    return head + _ARM_ELEMENT.sub(r'\1 data-arm="\3"\2', _EMPTY.sub("", body))


def write_chart(chart: alt.TopLevelMixin, path: Path) -> None:
    """Write the chart on white to ``path``, atomically, in the format of its suffix."""
    import vl_convert

    text = _VARIABLE.sub(_file_colour, render_svg(chart))
    # Vega numbers clip paths over the life of the process.
    numbers: dict[str, int] = {}
    text = re.sub(r"\bclip(\d+)\b", lambda clip: f"clip{numbers.setdefault(clip[1], len(numbers))}", text)
    end = text.index(">") + 1
    text = f'{text[:end]}<rect width="100%" height="100%" fill="#ffffff"/>{text[end:]}'
    size = re.search(r'viewBox="0 0 (\S+) (\S+)"', text)
    if size:
        text = text.replace("<svg ", f'<svg width="{size[1]}" height="{size[2]}" ', 1)
    png = path.suffix.lower() == ".png"
    write_bytes(path, vl_convert.svg_to_png(text, scale=2) if png else text.encode())


def _file_colour(variable: re.Match[str]) -> str:
    arm = variable[2]
    return COLOURS[int(arm) % len(COLOURS)] if arm else _FILE_COLOURS[variable[1] or variable[3]]
