"""Read HiTab's rows, and render its hierarchical tables as Markdown with flat headers.

Columns and rows are labelled by the path of their header levels. A merged cell has its text in its first cell and "" in
the others, so levels follow from positions. Linear time.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.tasks.problem import Problem

SEPARATOR = " / "

_MAX_CELLS = 200_000
_MAX_UNIT = 60
# Larger whole numbers are not written as decimals.
_MAX_NUMBER = 10**100
_NUMBER = re.compile(r"[-+(<>~$\u2212]*\s*\d[\d,. ]*[%)*]*")
_YEAR = re.compile(r"(?:1[5-9]|20)\d\d(?:[-/]\d{2,4})?")
_UNIT = re.compile(
    r"%|\$|number|percent|percentage|ratio|rate|dollars|hours|minutes|years|persons|millions?|billions?|thousands?"
    r"|kilograms?|tonnes|index|coefficient|odds|per\b"
)
# Spellings of an empty cell in the public tables.
_EMPTY_CELLS = ("", "none")


@dataclass(frozen=True)
class Layout:
    header_rows: int
    header_columns: int


def problem_from(fields: dict[str, Any], where: str) -> Problem:
    """Return the problem of a row: ``answer`` (number, text, or a list) and optional ``question``, ``id``, ``table``.

    A table is rendered text, a matrix of cells, or an object with ``texts`` and optionally ``title``, ``header_rows``
    and ``header_columns``. Raises UserError if a field is missing or malformed.
    """
    if "answer" not in fields:
        raise UserError(f"{where}: no field answer; it is a list of numbers and texts")
    answer = fields["answer"] if isinstance(fields["answer"], list) else [fields["answer"]]
    if not answer or not all(_is_value(item) for item in answer):
        raise UserError(f"{where}: answer must be a list of numbers and texts, with at least one and none empty")
    question = fields.get("question", "")
    if not isinstance(question, str):
        raise UserError(f"{where}: question must be text")
    table = render_table(fields.get("table"), where)
    identity = fields.get("id")
    if identity is None:
        identity = f"hitab-{text_digest(json.dumps([question, table, answer]))[:16]}"
    aggregation = fields.get("aggregation")
    kinds = aggregation if isinstance(aggregation, list) else [aggregation]
    subgroup = "+".join(kind for kind in kinds if isinstance(kind, str)) or "none"
    return Problem(str(identity), question, {"table": table, "answer": answer}, subgroup)


def _is_value(item: Any) -> bool:
    if isinstance(item, str):
        return bool(item.strip())
    if isinstance(item, bool) or not isinstance(item, int | float):
        return False
    return abs(item) < _MAX_NUMBER if isinstance(item, int) else math.isfinite(item)


def render_table(table: Any, where: str) -> str:
    if table is None or isinstance(table, str):
        return table or ""
    if isinstance(table, list):
        table = {"texts": table}
    if not isinstance(table, dict) or "texts" not in table:
        raise UserError(f"{where}: table must be text, a list of rows of cells, or an object with `texts`")
    texts = _check_cells(table["texts"], where)
    title = table.get("title", "")
    if not isinstance(title, str):
        raise UserError(f"{where}: table.title must be text")
    body = table_markdown(texts, _read_layout(table, texts, where))
    return f"Title: {' '.join(title.split())}\n\n{body}" if title.strip() else body


def _check_cells(texts: Any, where: str) -> list[list[str]]:
    if not isinstance(texts, list) or not texts or not all(isinstance(row, list) and row for row in texts):
        raise UserError(f"{where}: table.texts must be a list of rows, each a list of cells")
    if len({len(row) for row in texts}) > 1:
        raise UserError(f"{where}: table.texts needs rows of one length; a merged cell is its text, then empty ones")
    if len(texts) * len(texts[0]) > _MAX_CELLS:
        raise UserError(f"{where}: table.texts has more than {_MAX_CELLS:,} cells")
    if not all(cell is None or isinstance(cell, str | int | float) for row in texts for cell in row):
        raise UserError(f"{where}: table.texts must hold texts and numbers")
    return [["" if cell is None else str(cell) for cell in row] for row in texts]


def _read_layout(table: dict[str, Any], texts: list[list[str]], where: str) -> Layout:
    """Return the layout in the table's keys, else inferred from its cells and its hint of header rows."""
    inferred = infer_layout(texts)
    hint = table.get("header_hint")
    hinted = hint.get("top_header_rows_at_least") if isinstance(hint, dict) else None
    least = hinted if type(hinted) is int and 1 <= hinted < len(texts) else 1
    sizes = {"header_rows": len(texts), "header_columns": len(texts[0])}
    layout = {"header_rows": max(inferred.header_rows, least), "header_columns": inferred.header_columns}
    for key, size in sizes.items():
        value = table.get(key)
        if value is not None and (type(value) is not int or not 1 <= value <= size):
            raise UserError(f"{where}: table.{key} must be a whole number from 1 to {size}")
        layout[key] = layout[key] if value is None else value
    return Layout(**layout)


def infer_layout(texts: Sequence[Sequence[str]]) -> Layout:
    """Infer the extent of the headers from the cells.

    Rows: the first; the second if the first has merged cells and one of them does not label the row headers; following
    rows with an empty first cell and no number but years. Columns: the first, and following ones while some row has all
    header cells empty and others filled.
    """
    rows, width = len(texts), len(texts[0])
    header_rows = 1
    while header_rows < rows - 1 and _is_header(texts, header_rows):
        header_rows += 1
    header_columns = 1
    body = [row for row in texts[header_rows + 1 :] if not _section_label(row, 1)]
    while header_columns < width - 1 and any(
        not any(row[:header_columns]) and any(row[header_columns:]) for row in body
    ):
        header_columns += 1
    return Layout(header_rows, header_columns)


def table_markdown(texts: Sequence[Sequence[str]], layout: Layout | None = None) -> str:
    """Render a matrix of strings, of at least one row and one column, as Markdown; ``layout``: None = inferred."""
    layout = layout or infer_layout(texts)
    columns = column_paths(texts, layout)
    head = [_join_path(columns[: layout.header_columns]), *columns[layout.header_columns :]]
    rows = [head, ["---"] * len(head), *body_rows(texts, layout)]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |" for row in rows
    )


def column_paths(texts: Sequence[Sequence[str]], layout: Layout) -> list[str]:
    """Return the path of each column's header levels, ``eastern ontario / other workers``.

    An empty cell continues its left neighbour if both have the same header above, and always in a row of units.
    """
    levels: list[list[str]] = [[] for _ in texts[0]]
    # Per column, the first column of its merged header cell at the level above.
    above = [0] * len(levels)
    for row in texts[: layout.header_rows]:
        filled = [cell for cell in row[layout.header_columns :] if cell.strip()]
        units = 0 < len(filled) < len(row) - layout.header_columns and all(map(_is_unit, filled))
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
    return [_join_path(names) for names in levels]


def body_rows(texts: Sequence[Sequence[str]], layout: Layout) -> list[list[str]]:
    """Return each row below the header as [path of its row header, cells ...].

    A row with a label and no data (or only a unit) is a heading. ``n`` consecutive headings replace the ``n`` innermost
    ones, since tables lost their indentation; a heading without rows below it is an ordinary row.
    """
    count = layout.header_columns
    levels = [""] * count
    sections: list[str] = []
    run: list[str] = []
    rows: list[list[str]] = []
    for row in texts[layout.header_rows :]:
        label = _section_label(row, count)
        if label:
            run.append(label)
            continue
        if run:
            sections = [*sections[: max(0, len(sections) - len(run))], *run]
            run, levels = [], [""] * count
        continues = True
        for level in range(count):
            cell = row[level].strip()
            continues = continues and not cell
            if not continues:
                levels[level] = cell
        rows.append([_join_path([*sections, *levels]), *row[count:]])
    return rows + [[label, *[""] * (len(texts[0]) - count)] for label in run]


def _is_header(texts: Sequence[Sequence[str]], index: int) -> bool:
    row, above = texts[index], texts[index - 1]
    filled = [cell.strip() for cell in row[1:] if cell.strip()]
    gaps = any(not second.strip() and first.strip() for first, second in itertools.pairwise(above[1:]))
    if not filled:
        return False
    unnamed = row[0].strip() in _EMPTY_CELLS
    if index == 1 and gaps and (unnamed or above[0].strip() in _EMPTY_CELLS):
        return True
    return unnamed and not any(_NUMBER.fullmatch(cell) and not (gaps and _YEAR.fullmatch(cell)) for cell in filled)


def _section_label(row: Sequence[str], header_columns: int) -> str:
    """Return the heading of a row with its unit, or "" for a data row."""
    filled = [cell.strip() for cell in row if cell.strip()]
    if len(row) < 3 or len(row) == header_columns or not filled or _NUMBER.fullmatch(filled[0]):
        return ""
    if len(filled) == 1:
        return filled[0] if row[0].strip() or _is_unit(filled[0]) else ""
    alone = row[0].strip() and len(filled) == 2 and len(row) > header_columns + 1 and row[header_columns].strip()
    return f"{filled[0]} ({filled[1]})" if alone and _is_unit(filled[1]) else ""


def _is_unit(text: str) -> bool:
    return len(text) <= _MAX_UNIT and _NUMBER.fullmatch(text) is None and _UNIT.search(text.lower()) is not None


def _join_path(levels: Sequence[str]) -> str:
    return SEPARATOR.join(name for name, _ in itertools.groupby(filter(None, levels)))
