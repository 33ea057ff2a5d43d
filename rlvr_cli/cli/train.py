"""`rlvr train`: train a model, or resume a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlvr_cli.cli.common import ConfigFiles, DataDir, Json, Method, Model, Overrides, Task, print_json, with_data_dir
from rlvr_cli.config.errors import UserError

if TYPE_CHECKING:
    from rlvr_cli.runs.directory import RunDir


def train(
    overrides: Overrides = None,
    config_files: ConfigFiles = None,
    method: Method = None,
    task: Task = None,
    model: Model = None,
    data_dir: DataDir = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Continue this run (its folder, or its name).")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete a run of the same name first.")] = False,
    json: Json = False,
) -> None:
    """Train a model; with no argument, GRPO teaches the lab model Knights & Knaves.

    By reinforcement learning, or with `--method sft` by imitation of worked solutions.

    Ends with 0 when finished, 130 after Ctrl-C and 143 after SIGTERM (both save first and can be resumed), 1 when
    training failed, 2 on bad input.
    """
    from rlvr_cli.config.load import load_config
    from rlvr_cli.tasks.sets import check_training

    if resume is None:
        asked = with_data_dir(overrides, data_dir)
        config = load_config(config_files or [], method=method, task=task, model=model, overrides=asked)
        check_training(config)
    else:
        others = bool(overrides or config_files or method or task or model or data_dir or overwrite)
        resumed = _resumed_run(resume, others=others)
    from rich.console import Console

    from rlvr_cli.training import run

    console = Console(stderr=json)
    if resume is None:
        outcome = run.start(config, overwrite=overwrite, console=console)
    else:
        outcome = run.resume(resumed, console=console)
    if json:
        print_json(outcome.run.read_manifest())
    elif outcome.status == "finished":
        console.print(f"next: rlvr eval {outcome.run.path} --pass-at 32", highlight=False, markup=False)
    raise typer.Exit(outcome.exit_code)


def _resumed_run(name: str, *, others: bool) -> RunDir:
    if others:
        raise UserError(
            "--resume continues a run with its own configuration: leave out --config, --method, --task, --model, "
            "--data-dir, --overwrite and overrides. To change a setting, start a new run."
        )
    from rlvr_cli.config.load import load_config
    from rlvr_cli.runs.directory import find_run

    return find_run(name, Path(load_config([]).run.dir))
