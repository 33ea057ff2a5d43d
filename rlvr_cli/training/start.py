"""Start trainings from Python, as `rlvr train` does."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rlvr_cli.config.checks import check_training
from rlvr_cli.config.load import load_config, moved_from
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.layers import override_text
from rlvr_cli.core.text import without_secrets
from rlvr_cli.core.user_code import changed_files
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

    Every command accepts the run, and ``rlvr_cli.store`` has its tables. Several processes (`launch.processes`) start
    as on the command line.

    Args:
        config: configuration files, later ones winning.
        method, task, model: as the options of `rlvr train`: names, or the user's files.
        settings: keys with their values, over all other layers.
        overwrite: delete a run of the same name first.
        quiet: print nothing; the run's log.txt has the output.

    Raises:
        UserError: bad input, before the training starts; every problem at once.
        RunError: the training failed, or was stopped by a signal.
    """
    files = [Path(config)] if isinstance(config, str | Path) else [Path(path) for path in config]
    overrides = [override_text(key, value) for key, value in (settings or {}).items()]
    loaded = load_config(files, method, task, model, overrides, import_files=True, from_start=True)
    check_training(loaded)
    check_trackers(loaded.track.to)
    if overwrite and loaded.run.name is None:
        raise UserError("overwrite needs the name of the run that it replaces: the setting run.name.")
    arguments = [word for file in files for word in ("-c", str(file))]
    for option, value in (("method", method), ("task", task), ("model", model)):
        arguments += [f"--{option}", value] if value is not None else []
    command = without_secrets(shlex.join(["rlvr", "train", *arguments, *overrides]))
    console = Console(quiet=quiet)
    if needs_launcher(loaded.launch):
        from rlvr_cli.launch import torchrun

        end = torchrun.start_launched(loaded, overwrite=overwrite, console=console, command=command)
    else:
        check_single_process(loaded.launch)
        from rlvr_cli.training import run as training

        end = training.start_training(loaded, overwrite=overwrite, console=console, command=command)
    return _finished(end)


def resume(run: str | Path, *, settings: Mapping[str, Any] | None = None, quiet: bool = False) -> Path:
    """Resume a run as `rlvr train --resume` does, and return its folder when it is finished.

    Args:
        run: its name or folder.
        settings: {"train.rollouts": N} extends a run, also a finished one.

    Raises:
        UserError, RunError: as :func:`train`.
    """
    from rlvr_cli.training.extension import check_extension, load_extended

    run_dir = find_run(str(run), Path(Config().run.dir))
    overrides = [override_text(key, value) for key, value in (settings or {}).items()]
    check_extension(run_dir, overrides)
    loaded = load_extended(run_dir, overrides).config
    console = Console(quiet=quiet)
    moved = moved_from(run_dir)
    for line in (*([moved] if moved else []), *changed_files(run_dir.read_manifest())):
        console.print(line, highlight=False, markup=False)
    loaded.task.check_before()
    check_trackers(loaded.track.to)
    if needs_launcher(loaded.launch):
        from rlvr_cli.launch import torchrun

        end = torchrun.resume_launched(run_dir, loaded, console=console)
    else:
        check_single_process(loaded.launch)
        from rlvr_cli.training import run as training

        end = training.resume_training(run_dir, console=console, rollouts=loaded.train.rollouts)
    return _finished(end)


def _finished(end: RunEnd) -> Path:
    run = end.run
    if end.status != "finished":
        raise RunError(f"{run.path}: {end.status}; rlvr_cli.resume({str(run.path)!r}) continues it.")
    return run.path
