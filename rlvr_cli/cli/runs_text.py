"""What the commands of `rlvr runs` share: the folder they look into, and how a run's numbers are written."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rlvr_cli.cli.output import plain_table, print_table
from rlvr_cli.core.text import for_terminal

Root = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="FOLDER", help="Folder that holds the runs (run.dir). Default: runs.", show_default=False
    ),
]
DEFAULT_ROOT = Path("runs")


def chosen_root(given: Path | None) -> Path | None:
    """The folder of runs; None for the default one before there is a first run.

    Raises:
        UserError: the folder that was named is none, or is itself a run.
    """
    from rlvr_cli.runs.listing import check_root

    if given is None and not DEFAULT_ROOT.exists():
        return None
    root = given or DEFAULT_ROOT
    check_root(root)
    return root


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


def text_of(value: Any) -> str:
    """A field's value; `-` where there is none."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)


def progress(done: Any, total: Any) -> str:
    """`12/60`."""
    return f"{text_of(done)}/{text_of(total)}"


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
