"""Print results in the form of `--format`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from rlvr_cli.cli.command import MORE
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.terminal import Cell, colourize, is_terminal, style_of, table_lines, use_colour, width, wrap_text
from rlvr_cli.core.text import did_you_mean, escape_for_terminal, escape_json

if TYPE_CHECKING:
    from rlvr_cli.core.table import ResultDocument


def _format_option(*forms: str) -> Any:
    def check(form: str) -> str:
        if form not in forms:
            raise UserError(f"--format {form}: unknown format.{did_you_mean(form, forms)} Allowed: {', '.join(forms)}.")
        return form

    text = f"{', '.join(forms[:-1])} or {forms[-1]}; --json = --format json."
    return typer.Option("--format", metavar="FORMAT", callback=check, rich_help_panel=MORE, help=text)


# For commands that print more than tables; that list rows.
Format = Annotated[str, _format_option("table", "json")]
ListFormat = Annotated[str, _format_option("table", "json", "csv", "markdown", "latex")]


def show(form: str, document: ResultDocument) -> None:
    if form == "json":
        print_json(document.data)
    elif form == "table":
        _print_document(document)
    else:
        from rlvr_cli.core.table import render_csv, render_latex, render_markdown

        text = {"csv": render_csv, "markdown": render_markdown, "latex": render_latex}[form](document)
        echo(text, end="" if form == "csv" else "\n", unwrapped=True)


def _print_document(document: ResultDocument) -> None:
    for line in document.before:
        echo(line)
    for index, table in enumerate(document.tables):
        if index or document.before:
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
        echo(text.rstrip(), unwrapped=True)


def echo(
    text: Cell = "", *, end: str = "\n", file: TextIO | None = None, flush: bool = False, unwrapped: bool = False
) -> None:
    """Print text with control characters escaped, since it may hold untrusted names or data."""
    stream = file or sys.stdout
    safe = escape_for_terminal(str(text))
    safe = safe if unwrapped or not is_terminal(stream) else wrap_text(safe, width())
    style = style_of(text)
    print(colourize(safe, style) if style and use_colour(stream) else safe, end=end, file=file, flush=flush)


def print_waiting(task: str = "loading torch and transformers") -> None:
    """Print why the command waits, on a terminal only."""
    if is_terminal(sys.stderr):
        print(f"{task} ...", file=sys.stderr, flush=True)


def print_json(data: Any) -> None:
    print(escape_json(json.dumps(data, indent=2, ensure_ascii=False)))


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]], *, unwrapped: bool = False) -> None:
    """Print a table; with ``unwrapped`` each row is one line in a pipe, for the next program."""
    columns = None if unwrapped and not is_terminal(sys.stdout) else width()
    print("\n".join(table_lines(header, rows, columns, use_colour(sys.stdout))))


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)


def format_progress(done: Any, total: Any) -> str:
    return f"{format_value(done)}/{format_value(total)}"


def format_reward(last: dict[str, Any]) -> str:
    """Return the mean reward; the loss for an imitation run."""
    return format_number(last, "reward", "{:.3f}") or format_number(last, "loss", "loss {:.3f}") or "-"


def format_accuracy(last: dict[str, Any]) -> str:
    """Return the share of correct completions; the share of predicted tokens for an imitation run."""
    return format_number(last, "accuracy", "{:.3f}") or format_number(last, "token_accuracy", "{:.3f} of tokens") or "-"


def format_number(numbers: dict[str, Any], name: str, form: str) -> str | None:
    value = numbers.get(name)
    return form.format(value) if isinstance(value, int | float) else None
