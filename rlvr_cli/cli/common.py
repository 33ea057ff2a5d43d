"""The options that every command with a configuration takes, and how they become one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import for_json, for_terminal

if TYPE_CHECKING:
    from rich.table import Table

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option("--config", "-c", metavar="FILE", help="YAML configuration; later files win over earlier ones."),
]
Method = Annotated[str | None, typer.Option("--method", metavar="NAME", help="Training method, as `grpo`.")]
Task = Annotated[str | None, typer.Option("--task", metavar="NAME", help="Task, as `math`: `rlvr tasks` lists them.")]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="`lab`, a hub id, or a folder with a model in it."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SECTION.KEY=VALUE",
        help="Overrides, as optimizer.lr=1e-6. `rlvr config keys` lists every key.",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder in which a data set's name (task.data) is looked for; sets task.data_dir.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Let Python code of the model's own repository run here. Nothing stores this: give it each time.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON in place of text.")]


def list_by_default(context: typer.Context, as_json: bool, listing: Callable[[bool], None]) -> None:
    """What a group of commands does when it is called without one: ``listing``, told whether to print JSON.

    Raises UserError for a --json that stands in front of a command, where it would be without effect.
    """
    if context.invoked_subcommand is None:
        listing(as_json)
    elif as_json:
        command = f"rlvr {context.info_name} {context.invoked_subcommand}"
        raise UserError(f"--json goes behind the command: {command} ... --json")


def with_data_dir(overrides: list[str] | None, folder: Path | None) -> list[str]:
    """The overrides with the one that `--data-dir` stands for.

    Raises:
        UserError: an override sets the same key.
    """
    given = overrides or []
    if folder is None:
        return given
    if any(text.partition("=")[0].strip() == "task.data_dir" for text in given):
        raise UserError(f"--data-dir {folder} and task.data_dir set the same thing; give one of them.")
    return [*given, f"task.data_dir={json.dumps(str(folder), ensure_ascii=False)}"]


def with_options(overrides: list[str], launch: dict[str, Any]) -> list[str]:
    """The overrides with those that the options of `launch` stand for, by their keys; None is an option not given.

    Raises:
        UserError: an override sets the same key.
    """
    given = {name: value for name, value in launch.items() if value is not None}
    if "accelerate_config" in given:
        given.setdefault("launcher", "accelerate")
    set_already = {text.partition("=")[0].strip() for text in overrides}
    both = [name for name in given if launch.get(name) is not None and f"launch.{name}" in set_already]
    if both:
        raise UserError(
            [f"--{name.replace('_', '-')} and launch.{name} set the same thing; give one of them." for name in both]
        )
    new = [
        f"launch.{name}={json.dumps(value, default=str, ensure_ascii=False)}"
        for name, value in given.items()
        if f"launch.{name}" not in set_already
    ]
    return [*overrides, *new]


def echo(text: str = "", *, end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Prints text with names, data or answers of others in it: what would steer the terminal is shown as an escape."""
    print(for_terminal(text), end=end, file=file, flush=flush)


def print_json(data: Any) -> None:
    """Prints `data` as indented JSON to standard output."""
    print(for_json(json.dumps(data, indent=2, ensure_ascii=False)))


def plain_table(first: str, *others: str) -> Table:
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


def print_table(table: Table) -> None:
    """Prints to standard output, at the terminal's width (120 columns where there is no terminal)."""
    import sys

    from rich.console import Console

    # A process started with a closed standard output has None there.
    width = None if sys.stdout is not None and sys.stdout.isatty() else 120
    Console(markup=False, emoji=False, highlight=False, width=width).print(table)
