"""What every command prints, and in which form: `--format`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import did_you_mean, for_json, for_terminal

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from rlvr_cli.core.table import Document, Table


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


def show(form: str, document: Document) -> None:
    """Prints a result in the form that `--format` names."""
    if form == "json":
        print_json(document.data)
    elif form == "table":
        _print(document)
    else:
        from rlvr_cli.core.table import csv_text, latex, markdown

        text = {"csv": csv_text, "markdown": markdown, "latex": latex}[form](document)
        echo(text, end="" if form == "csv" else "\n")


def _print(document: Document) -> None:
    for line in document.before:
        echo(line)
    for place, table in enumerate(document.tables):
        if place or document.before:
            echo()
        if table.title:
            echo(table.title)
        print_cells(table)
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
