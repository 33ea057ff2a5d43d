"""Hierarchical tables as Markdown with plain headers: every column and every row is named by the path of its levels.

A merged cell has its text in its first cell and "" in the others, so levels are read off positions. Everything is
linear in the number of cells and the length of what is written.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

SEPARATOR = " / "

_NUMBER = re.compile(r"[-+(<>~$\u2212]*\s*\d[\d,. ]*[%)*]*")
_YEAR = re.compile(r"(?:1[5-9]|20)\d\d(?:[-/]\d{2,4})?")
_UNIT = re.compile(
    r"%|\$|number|percent|percentage|ratio|rate|dollars|hours|minutes|years|persons|millions?|billions?|thousands?"
    r"|kilograms?|tonnes|index|coefficient|odds|per\b",
)
_MAX_UNIT = 60
# The public tables write an empty cell in either way.
_NOTHING = ("", "none")


@dataclass(frozen=True)
class Layout:
    """How many of a table's first rows hold column headers and how many of its first columns hold row headers."""

    header_rows: int
    header_columns: int


@dataclass
class _Body:
    """Row headers as they are read from top to bottom."""

    levels: list[str]
    sections: list[str] = field(default_factory=list)
    run: list[str] = field(default_factory=list)


def infer_layout(texts: Sequence[Sequence[str]]) -> Layout:
    """The header's extent, judged by the cells alone.

    Rows: the first; the second if the first has merged cells and one of the two has no name for the row headers; those
    below it with an empty first cell and no number but years. Columns: the first, and those right of one with empty
    cells next to filled ones.
    """
    rows, width = len(texts), len(texts[0])
    header_rows = 1
    while header_rows < rows - 1 and _is_header(texts, header_rows):
        header_rows += 1
    header_columns = 1
    body = [row for row in texts[header_rows + 1 :] if not _is_section(row, 1)]
    while header_columns < width - 1 and any(
        not any(row[:header_columns]) and sum(map(bool, row[header_columns:])) > 0 for row in body
    ):
        header_columns += 1
    return Layout(header_rows, header_columns)


def table_markdown(texts: Sequence[Sequence[str]], layout: Layout | None = None) -> str:
    """The table as Markdown.

    Args:
        texts: a matrix of strings, at least one row and one column, all rows of one length.
        layout: the header's extent; None = inferred.
    """
    layout = layout or infer_layout(texts)
    columns = column_paths(texts, layout)
    corner = _path(columns[: layout.header_columns])
    head = [corner, *columns[layout.header_columns :]]
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line(row) for row in body_rows(texts, layout)]
    return "\n".join(lines)


def column_paths(texts: Sequence[Sequence[str]], layout: Layout) -> list[str]:
    """The path of each column's header levels, ``eastern ontario / other workers``.

    An empty cell belongs to the text on its left if both have the same header above; in a row of units, always.
    """
    levels: list[list[str]] = [[] for _ in texts[0]]
    # The first column of the merged header cell that each column is under, at the level above.
    above = [0] * len(levels)
    for row in texts[: layout.header_rows]:
        units = _is_unit_row(row, layout.header_columns)
        blocks: list[int] = []
        name = ""
        for column, cell in enumerate(row):
            starts = column in (0, layout.header_columns)
            if cell.strip() or starts or not (units or above[column] == above[column - 1]):
                name = cell.strip()
                blocks.append(column)
            else:
                blocks.append(blocks[-1])
            levels[column].append(name)
        above = above if units else blocks
    return [_path(names) for names in levels]


def body_rows(texts: Sequence[Sequence[str]], layout: Layout) -> list[list[str]]:
    """Each row below the header as [path of its row header, cells ...].

    A row with a name and no data (or only a unit) heads the rows below it. ``n`` such rows in a run replace the ``n``
    innermost headings, since tables lost their indentation; one that nothing follows is an ordinary row.
    """
    count = layout.header_columns
    body = _Body([""] * count)
    rows: list[list[str]] = []
    for row in texts[layout.header_rows :]:
        label = _section_label(row, count)
        if label:
            body.run.append(label)
            continue
        if body.run:
            kept = max(0, len(body.sections) - len(body.run))
            body.sections = [*body.sections[:kept], *body.run]
            body.run = []
            body.levels = [""] * count
        continues = True
        for level in range(count):
            cell = row[level].strip()
            continues = continues and not cell
            if not continues:
                body.levels[level] = cell
        rows.append([_path([*body.sections, *body.levels]), *row[count:]])
    rows += [[label, *[""] * (len(texts[0]) - count)] for label in body.run]
    return rows


def _is_header(texts: Sequence[Sequence[str]], index: int) -> bool:
    row, above = texts[index], texts[index - 1]
    filled = [cell.strip() for cell in row[1:] if cell.strip()]
    gaps = any(not right.strip() and left.strip() for left, right in itertools.pairwise(above[1:]))
    if not filled:
        return False
    unnamed = row[0].strip() in _NOTHING
    if index == 1 and gaps and (unnamed or above[0].strip() in _NOTHING):
        return True
    return unnamed and not any(_NUMBER.fullmatch(cell) and not (gaps and _YEAR.fullmatch(cell)) for cell in filled)


def _is_section(row: Sequence[str], header_columns: int) -> bool:
    return bool(_section_label(row, header_columns))


def _section_label(row: Sequence[str], header_columns: int) -> str:
    """The heading that a row is, with its unit if it has one; "" for a row of data."""
    filled = [cell.strip() for cell in row if cell.strip()]
    if len(row) < 3 or len(row) == header_columns or not filled or _NUMBER.fullmatch(filled[0]):
        return ""
    if len(filled) == 1:
        return filled[0] if row[0].strip() or _is_unit(filled[0]) else ""
    alone = row[0].strip() and len(filled) == 2 and len(row) > header_columns + 1 and row[header_columns].strip()
    return f"{filled[0]} ({filled[1]})" if alone and _is_unit(filled[1]) else ""


def _is_unit_row(row: Sequence[str], header_columns: int) -> bool:
    filled = [cell for cell in row[header_columns:] if cell.strip()]
    return 0 < len(filled) < len(row) - header_columns and all(_is_unit(cell) for cell in filled)


def _is_unit(text: str) -> bool:
    return len(text) <= _MAX_UNIT and _NUMBER.fullmatch(text) is None and _UNIT.search(text.lower()) is not None


def _path(levels: Sequence[str]) -> str:
    """The levels in order, without empty ones and without one that repeats the level above."""
    names: list[str] = []
    for name in levels:
        if name and (not names or names[-1] != name):
            names.append(name)
    return SEPARATOR.join(names)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
