"""Start trainings from Python, as `rlvr train` does."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rlvr_cli.config.checks import check_training
from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.layers import format_override
from rlvr_cli.core.text import redact_secrets
from rlvr_cli.core.user_code import edited_file_warnings
from rlvr_cli.launch.command import check_single_process, needs_launcher
from rlvr_cli.launch.stopping import RunEnd
from rlvr_cli.runs.folder import find_run
from rlvr_cli.tracking.trackers import check_trackers


def train(
    config: str | Path | Sequence[str | Path] = (),
    *,
    method: str | None = None,
    task: str | None = None,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Path:
    """Train a run as `rlvr train` does, and return the folder of the finished run.

        run = rlvr_cli.train(method="dgpo+lopti", settings={"train.rollouts": 20})

    Every command accepts the run, and ``rlvr_cli.store`` reads its results. Several processes (`launch.processes`) are
    launched as on the command line.

    Args:
        config: configuration files or recipes (`rlvr config recipes`); later ones win.
        method, task, model: as the options of `rlvr train`: names, or the user's files.
        settings: keys and values, which override all other layers.
        overwrite: delete a run of the same name first.
        quiet: print nothing; the output is in the run's log.txt.

    Raises:
        UserError: invalid input, before the training starts; every problem at once.
        RunError: the training failed, or was stopped by a signal.
    """
    files = [Path(config)] if isinstance(config, str | Path) else [Path(path) for path in config]
    overrides = [format_override(key, value) for key, value in (settings or {}).items()]
    loaded = load_config(files, method, task, model, overrides, import_files=True, from_start=True)
    check_training(loaded)
    check_trackers(loaded.track.to)
    if overwrite and loaded.run.name is None:
        raise UserError("overwrite=True needs the name of the run to replace. Set run.name.")
    arguments = [word for file in files for word in ("-c", str(file))]
    for option, value in (("method", method), ("task", task), ("model", model)):
        arguments += [f"--{option}", value] if value is not None else []
    command = redact_secrets(shlex.join(["rlvr", "train", *arguments, *overrides]))
    console = Console(quiet=quiet)
    if needs_launcher(loaded.launch):
        from rlvr_cli.launch import torchrun

        end = torchrun.start_launched(loaded, overwrite=overwrite, console=console, command=command)
    else:
        check_single_process(loaded.launch)
        from rlvr_cli.training import run as training

        end = training.start_training(loaded, overwrite=overwrite, console=console, command=command)
    return _finished_path(end)


def resume(run: str | Path, *, settings: Mapping[str, Any] | None = None, quiet: bool = False) -> Path:
    """Resume a run as `rlvr train --resume` does, and return its folder when it is finished.

    Args:
        run: name or folder.
        settings: {"train.rollouts": N} extends the run, also a finished one.

    Raises:
        UserError, RunError: as :func:`train`.
    """
    from rlvr_cli.training.extension import check_extension, load_extended

    run_dir = find_run(str(run), Path(Config().run.dir))
    overrides = [format_override(key, value) for key, value in (settings or {}).items()]
    check_extension(run_dir, overrides)
    loaded = load_extended(run_dir, overrides).config
    console = Console(quiet=quiet)
    for line in edited_file_warnings(run_dir.read_manifest()):
        console.print(line, highlight=False, markup=False)
    loaded.task.check_requirements()
    check_trackers(loaded.track.to)
    if needs_launcher(loaded.launch):
        from rlvr_cli.launch import torchrun

        end = torchrun.resume_launched(run_dir, loaded, console=console)
    else:
        check_single_process(loaded.launch)
        from rlvr_cli.training import run as training

        end = training.resume_training(run_dir, console=console, rollouts=loaded.train.rollouts)
    return _finished_path(end)


def _finished_path(end: RunEnd) -> Path:
    path = end.run.path
    if end.status != "finished":
        raise RunError(f"{path}: {end.status}. Continue with rlvr_cli.resume({str(path)!r}).")
    return path
