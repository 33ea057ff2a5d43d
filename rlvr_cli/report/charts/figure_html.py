"""A chart as a page takes it: inline SVG, a caption and a table of the same numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One chart.

    Attributes:
        key: its name among the figures of a page; letters, digits and hyphens.
        title: what it shows, in a few words.
        svg: an `<svg>` element without size, with the page's colours as CSS variables and ids that begin with ``key``.
        caption: plain text: what lines and bands are, how many runs, what was left out.
        table: a header and rows, the numbers of the chart as text.
    """

    key: str
    title: str
    svg: str
    caption: str
    table: tuple[tuple[str, ...], ...]
