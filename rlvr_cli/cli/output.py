"""What every command prints, and in which form: `--format`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from rlvr_cli.cli.command import MORE
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.terminal import Cell, coloured, is_terminal, painted, style_of, table_lines, width, wrapped
from rlvr_cli.core.text import did_you_mean, for_json, for_terminal

if TYPE_CHECKING:
    from rlvr_cli.core.table import ResultDocument


def _option(*forms: str) -> Any:
    def check(form: str) -> str:
        if form not in forms:
            raise UserError(
                f"--format {form}: no such format.{did_you_mean(form, forms)} There are: {', '.join(forms)}."
            )
        return form

    said = f"{', '.join(forms[:-1])} or {forms[-1]}; --json = --format json."
    return typer.Option("--format", metavar="FORMAT", callback=check, rich_help_panel=MORE, help=said)


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
        echo(text, end="" if form == "csv" else "\n", whole=True)


def _print(document: ResultDocument) -> None:
    for line in document.before:
        echo(line)
    for place, table in enumerate(document.tables):
        if place or document.before:
            echo()
        if table.title:
            echo(table.title)
        print_table(table.header, table.rows)
        if table.note:
            echo(table.note)
    if document.after:
        echo()
    for line in document.after:
        echo(line)
    for text in document.files:
        echo()
        echo(text.rstrip(), whole=True)


def echo(
    text: Cell = "", *, end: str = "\n", file: TextIO | None = None, flush: bool = False, whole: bool = False
) -> None:
    """Prints text with names, data or answers of others in it: what would steer the terminal is shown as an escape.

    Args:
        whole: leave lines as they are; else a terminal gets them broken between words.
    """
    stream = file or sys.stdout
    safe = for_terminal(str(text))
    safe = safe if whole or not is_terminal(stream) else wrapped(safe, width())
    style = style_of(text)
    print(painted(safe, style) if style and coloured(stream) else safe, end=end, file=file, flush=flush)


def waiting(what: str = "loading torch and transformers") -> None:
    """Tells who waits at a terminal what takes the next seconds."""
    if is_terminal(sys.stderr):
        print(f"{what} ...", file=sys.stderr, flush=True)


def print_json(data: Any) -> None:
    """Prints `data` as indented JSON to standard output."""
    print(for_json(json.dumps(data, indent=2, ensure_ascii=False)))


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, whole: bool = False) -> None:
    """Prints a table for people; with ``whole`` a pipe gets each row as one line, for the next program in it."""
    columns = None if whole and not is_terminal(sys.stdout) else width()
    print("\n".join(table_lines(header, rows, columns, coloured(sys.stdout))))


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
