"""The options that every command with a configuration takes, and how they become one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.core.errors import UserError

if TYPE_CHECKING:
    from rlvr_cli.config.load import Row

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="YAML configuration; later files win over earlier ones. FILE:ROW = a trial of a sweep file.",
    ),
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


def config_sources(files: list[Path] | None) -> list[Path | Row]:
    """What `--config` names. Raises UserError for rows that are in no sweep file."""
    from rlvr_cli.sweeps.rows import config_source

    return [config_source(file) for file in files or []]


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
