"""Tables and results in Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlvr_cli.core.nested import flatten
from rlvr_cli.core.terminal import Cell

NONE = "–"  # noqa: RUF001 - an en dash: no value
_LATEX = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


@dataclass(frozen=True)
class Table:
    """Rows of text, each with a cell per column of ``header``; the first cell is its name.

    ``title``: "" = none. ``texts``: further columns (from 0) of words. ``note``: a remark on the numbers.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    texts: Sequence[int] = ()
    note: str = ""


@dataclass(frozen=True)
class ResultDocument:
    """A result in any output format.

    Attributes:
        tables, and the lines before and after them.
        files: contents of files, printed last, verbatim.
        data: the full result, as JSON.
        rows: of the CSV; nested values become columns such as `difference.low`. shared: columns of every row.
    """

    tables: Sequence[Table]
    data: Any
    before: Sequence[str] = ()
    after: Sequence[str] = ()
    files: Sequence[str] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    shared: Mapping[str, Any] = field(default_factory=dict)


def render_markdown(document: ResultDocument) -> str:
    blocks = ["\n".join(f"- {line}" for line in document.before if line)]
    blocks += [f"{table.title}\n\n{_markdown_table(table)}\n\n{table.note}".strip() for table in document.tables]
    blocks.append("\n".join(f"- {line}" for line in document.after if line))
    blocks += [f"```\n{text.rstrip()}\n```" for text in document.files]
    return "\n\n".join(block for block in blocks if block)


def render_latex(document: ResultDocument) -> str:
    lines = [f"% {line}" for line in document.before if line]
    for table in document.tables:
        lines += [*([f"% {table.title}"] if table.title else []), _latex_table(table)]
        lines += [f"% {line}" for line in table.note.splitlines()]
    after = [*document.after, *(line for text in document.files for line in text.splitlines())]
    return "\n".join([*lines, *(f"% {line}" for line in after if line)])


def render_csv(document: ResultDocument) -> str:
    """Render the rows as CSV with the union of their columns; missing values are empty."""
    rows = [flatten_row(row) for row in document.rows]
    stream = io.StringIO()
    columns = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(stream, [*columns, *document.shared], lineterminator="\n", restval="")
    if writer.fieldnames:
        writer.writeheader()
    writer.writerows({**row, **document.shared} for row in rows)
    return stream.getvalue()


def flatten_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested values to columns such as `difference.low`, and join lists by `;`."""
    cells = flatten(row)
    for name, cell in cells.items():
        if isinstance(cell, list | tuple):
            cells[name] = ";".join("" if entry is None else str(entry) for entry in cell)
    return cells


def _markdown_table(table: Table) -> str:
    lines: list[Sequence[Cell]] = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _latex_table(table: Table) -> str:
    def line(cells: Sequence[Cell]) -> str:
        escaped = ("".join(_LATEX.get(letter, letter) for letter in str(cell)) for cell in cells)
        return f"{' & '.join(escaped)} \\\\"

    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"\toprule",
            line(table.header),
            r"\midrule",
            *(line(row) for row in table.rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )
