"""What every command prints, and in which form: `--format`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean, for_json, for_terminal

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from rlvr_cli.core.table import ResultDocument, Table


def _option(*forms: str) -> Any:
    def check(form: str) -> str:
        if form not in forms:
            raise UserError(
                f"--format {form}: no such format.{did_you_mean(form, forms)} There are: {', '.join(forms)}."
            )
        return form

    return typer.Option("--format", metavar="|".join(forms), callback=check, help="Print for people, or as data.")


# Of a command that prints more than tables; of one with several tables, which are no CSV file; of one that lists.
Format = Annotated[str, _option("table", "json")]
TablesFormat = Annotated[str, _option("table", "json", "markdown", "latex")]
ListFormat = Annotated[str, _option("table", "json", "csv", "markdown", "latex")]


def show(form: str, document: ResultDocument) -> None:
    """Prints a result in the form that `--format` names."""
    if form == "json":
        print_json(document.data)
    elif form == "table":
        _print(document)
    else:
        from rlvr_cli.core.table import csv_text, latex, markdown

        text = {"csv": csv_text, "markdown": markdown, "latex": latex}[form](document)
        echo(text, end="" if form == "csv" else "\n")


def _print(document: ResultDocument) -> None:
    for line in document.before:
        echo(line)
    for place, table in enumerate(document.tables):
        if place or document.before:
            echo()
        if table.title:
            echo(table.title)
        print_cells(table)
        if table.note:
            echo(table.note)
    if document.after:
        echo()
    for line in document.after:
        echo(line)


def print_cells(table: Table) -> None:
    """Prints a table for people."""
    shown = plain_table(*table.header)
    for row in table.rows:
        shown.add_row(*row)
    print_table(shown)


def echo(text: str = "", *, end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Prints text with names, data or answers of others in it: what would steer the terminal is shown as an escape."""
    print(for_terminal(text), end=end, file=file, flush=flush)


def print_json(data: Any) -> None:
    """Prints `data` as indented JSON to standard output."""
    print(for_json(json.dumps(data, indent=2, ensure_ascii=False)))


def plain_table(first: str, *others: str) -> RichTable:
    """A table without a frame; the first column is never cut."""
    from rich.table import Table

    class Plain(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*(for_terminal(cell) if isinstance(cell, str) else cell for cell in cells), **options)

    table = Plain(box=None, pad_edge=False)
    table.add_column(for_terminal(first), no_wrap=True, overflow="ignore")
    for name in others:
        table.add_column(for_terminal(name), overflow="fold")
    return table


def print_table(table: RichTable) -> None:
    """Prints to standard output, at the terminal's width (120 columns where there is no terminal)."""
    from rich.console import Console

    # A process started with a closed standard output has None there.
    width = None if sys.stdout is not None and sys.stdout.isatty() else 120
    Console(markup=False, emoji=False, highlight=False, width=width).print(table)


def width() -> int:
    """Columns of the terminal on standard output; 120 where there is none."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if terminal else 120


def print_rows(*rows: Sequence[str]) -> None:
    """Prints lines of cells in columns; the first line is the header.

    A terminal that is too narrow for them gets a table that folds its cells; elsewhere lines are left whole, for the
    next program in a pipe. (Rich's table takes seconds for thousands of runs.)
    """
    from rich.cells import cell_len

    rows = tuple([for_terminal(cell) for cell in row] for row in rows)
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    gap = 2
    if sys.stdout is not None and sys.stdout.isatty() and sum(widths) + gap * (len(widths) - 1) > width():
        table = plain_table(*rows[0])
        for cells in rows[1:]:
            table.add_row(*cells)
        print_table(table)
        return
    for cells in rows:
        padded = [cell + " " * (room - cell_len(cell) + gap) for cell, room in zip(cells, widths, strict=True)]
        print("".join(padded).rstrip())


def printed_text(value: Any) -> str:
    """A field's value; `-` where there is none."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)


def progress(done: Any, total: Any) -> str:
    """`12/60`."""
    return f"{printed_text(done)}/{printed_text(total)}"


def reward(last: dict[str, Any]) -> str:
    """The mean reward; of a run that imitates, which has none, the loss that takes its place."""
    return figure(last, "reward", "{:.3f}") or figure(last, "loss", "loss {:.3f}") or "-"


def accuracy(last: dict[str, Any]) -> str:
    """The share of completions that are right; of a run that imitates, the share of tokens predicted."""
    return figure(last, "accuracy", "{:.3f}") or figure(last, "token_accuracy", "{:.3f} of tokens") or "-"


def figure(numbers: dict[str, Any], name: str, form: str) -> str | None:
    """The number called ``name`` in this form; None where there is none."""
    value = numbers.get(name)
    return form.format(value) if isinstance(value, int | float) else None
