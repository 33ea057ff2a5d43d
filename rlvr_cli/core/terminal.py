"""Format text for a terminal: word wrap, tables, colours."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rich.cells import cell_len

from rlvr_cli.core.text import escape_for_terminal

# Columns without a terminal.
NO_TERMINAL = 120
GAP = 2
# Colours, which only repeat what the text states.
STYLES = {"good": "32", "bad": "31", "warn": "33", "strong": "1"}
# States of runs and trials.
STATES = {
    "finished": "good",
    "running": "strong",
    "evaluating": "strong",
    "interrupted": "warn",
    **dict.fromkeys(("failed", "killed", "damaged"), "bad"),
}
# Unbreakable parts of a line: commands, code in backticks, intervals, numbers with a unit.
_PIECE = re.compile(
    r"(?:(?<=: )|^)rlvr \S.*?(?=[,;.)](?:\s|$)|$)\S*"
    r"|[^\s`]*`[^`\n]+`\S*"
    r"|[-+\d]\S* \[[^\]\n]{1,40}\]\S*"
    r"|\d[\d.,]* (?:[KMGT]i?B|k?B|ms|s|min|h|d)(?!\w)\S*"
    r"|\S+"
)


@dataclass(frozen=True)
class Marked:
    """Text with a style of :data:`STYLES`."""

    text: str
    style: str

    def __str__(self) -> str:
        return self.text


# A cell of a table.
Cell = str | Marked


def format_state(state: str, more: str = "") -> Cell:
    """Return a table cell with the state of a run or trial, followed by ``more``."""
    return Marked(f"{state}{more}", STATES[state]) if state in STATES else f"{state}{more}"


def style_of(text: Cell) -> str | None:
    return text.style if isinstance(text, Marked) else "warn" if text.startswith("WARNING") else None


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def use_colour(stream: TextIO | None) -> bool:
    """Return whether to colour the stream: never with NO_COLOR, always with FORCE_COLOR, else on a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (is_terminal(stream) and os.environ.get("TERM") != "dumb")


def colourize(text: str, style: str) -> str:
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def print_stderr(text: str) -> None:
    safe = escape_for_terminal(text)
    print(wrap_text(safe, width()) if is_terminal(sys.stderr) else safe, file=sys.stderr, flush=True)


def width() -> int:
    """Return the terminal's width in columns, also in a pipe such as `rlvr runs list | head`; COLUMNS has priority."""
    columns_set = os.environ.get("COLUMNS", "")
    if columns_set.isdecimal() and int(columns_set):
        return int(columns_set)
    for stream in (sys.stdout, sys.stderr, sys.stdin):
        try:
            columns = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError, AttributeError):  # not a terminal, closed, or not a system stream
            continue
        if columns:
            return columns
    return NO_TERMINAL


def wrap_text(text: str, columns: int) -> str:
    """Wrap ``text`` between words, keeping the indentation. Longer words are not broken."""
    return "\n".join(piece for line in text.split("\n") for piece in _wrap_line(line, columns))


def _wrap_line(line: str, columns: int) -> Iterator[str]:
    if cell_len(line) <= columns:
        yield line
        return
    indent = line[: _indent(line)]
    current = ""
    for piece in _pieces(line.strip(), columns - len(indent)):
        if current and cell_len(current) + 1 + cell_len(piece) > columns:
            yield current
            current = ""
        current = f"{current} {piece}" if current else f"{indent}{piece}"
    yield current


def _pieces(text: str, columns: int) -> Iterator[str]:
    """Yield the unbreakable parts of ``text``; those wider than ``columns`` are split, except commands."""
    for piece in _PIECE.findall(text):
        if cell_len(piece) <= columns or piece.startswith("rlvr "):
            yield piece
        else:
            yield from piece.split()


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[Any]], columns: int | None, colours: bool = False
) -> list[str]:
    """Format a table without a frame. Cells are word-wrapped; columns that do not fit follow in a table below.

    ``header``: all empty = no header. ``columns``: width limit; None = one line per row.
    """
    lines = [[escape_for_terminal(str(cell)) for cell in row] for row in [header, *rows]]
    natural = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    if columns is None or sum(natural) + GAP * (len(natural) - 1) <= columns:
        blocks = [(list(range(len(natural))), natural)]
    else:
        blocks = list(_blocks(lines, natural, columns))
    output: list[str] = []
    for chosen, widths in blocks:
        if output:
            output.append("")
        for number, line in enumerate(lines):
            if number or any(header):
                row = rows[number - 1] if number and colours else ()
                styles = {column: cell.style for column, cell in enumerate(row) if isinstance(cell, Marked)}
                output += _format_row(
                    [line[column] for column in chosen], widths, [styles.get(column) for column in chosen]
                )
    return output


def _blocks(lines: list[list[str]], natural: list[int], columns: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield groups of columns that fit next to the first one (and a second without a title), and their widths."""
    least = [
        max((_indent(cell) + cell_len(piece) for cell in cells for piece in _pieces(cell, columns // 2)), default=0)
        for cells in zip(*lines, strict=True)
    ]
    if natural[0] <= columns // 3:
        least[0] = natural[0]
    labels = [0, 1] if lines[0][0] and not lines[0][1] else [0]
    groups = [[*labels]]
    for column in range(len(labels), len(natural)):
        width = sum(least[index] + GAP for index in [*groups[-1], column]) - GAP
        if len(groups[-1]) > len(labels) and width > columns:
            groups.append([*labels])
        groups[-1].append(column)
    for group in groups:
        yield group, _share_width([least[index] for index in group], [natural[index] for index in group], columns)


def _indent(cell: str) -> int:
    return len(cell) - len(cell.lstrip())


def _share_width(least: list[int], natural: list[int], columns: int) -> list[int]:
    """Return widths between ``least`` and ``natural``, widening the columns with the most wrapped lines first."""
    widths, room = list(least), columns - sum(least) - GAP * (len(least) - 1)
    while room > 0 and (growing := [index for index in range(len(widths)) if widths[index] < natural[index]]):
        widths[max(growing, key=lambda index: natural[index] / widths[index])] += 1
        room -= 1
    return widths


def _format_row(cells: list[str], widths: list[int], styles: list[str | None]) -> list[str]:
    wrapped_cells = [wrap_text(cell, room).split("\n") for cell, room in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(map(len, wrapped_cells))):
        line = ""
        gap = 0
        for style, pieces, room in zip(styles, wrapped_cells, widths, strict=True):
            text = pieces[number] if number < len(pieces) else ""
            line += " " * gap + (colourize(text, style) if style and text else text)
            gap = room - cell_len(text) + GAP
        lines.append(line.rstrip())
    return lines
