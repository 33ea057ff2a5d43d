"""`rlvr train`: train a model, or resume a run that was stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlvr_cli.cli.options import (
    ConfigFiles,
    DataDir,
    DataOption,
    Method,
    Model,
    Overrides,
    Reward,
    Task,
    TrustRemoteCode,
    config_sources,
    with_data_dir,
    with_options,
    with_own,
)
from rlvr_cli.cli.output import Format, echo, print_json
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import for_terminal

if TYPE_CHECKING:
    from rich.console import Console

    from rlvr_cli.config.load import LoadedConfig, SweepRow
    from rlvr_cli.config.schema import Config
    from rlvr_cli.launch.stopping import RunEnd
    from rlvr_cli.launch.world import World
    from rlvr_cli.runs.folder import RunDir


# Shown with its interval by the command that a finished training ends with.
PASS_AT = 32


def train(
    overrides: Overrides = None,
    config_files: ConfigFiles = None,
    method: Method = None,
    task: Task = None,
    model: Model = None,
    data: DataOption = None,
    reward: Reward = None,
    data_dir: DataDir = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="RUN", help="Continue this run (its folder or name); with train.rollouts=N, extend it."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete a run of the same name first.")] = False,
    processes: Annotated[
        int | None, typer.Option("--processes", metavar="N", help="Train in N processes, one a GPU (launch.processes).")
    ] = None,
    launcher: Annotated[
        str | None, typer.Option("--launcher", metavar="NAME", help="`torchrun` or `accelerate` (launch.launcher).")
    ] = None,
    accelerate_config: Annotated[
        Path | None,
        typer.Option("--accelerate-config", metavar="FILE", help="File of `accelerate config`; implies the launcher."),
    ] = None,
    submit: Annotated[
        str | None,
        typer.Option("--submit", metavar="slurm", help="Queue the training as a job of a cluster (section slurm)."),
    ] = None,
    print_script: Annotated[
        bool, typer.Option("--print-script", help="Print the job that --submit slurm would queue, and queue nothing.")
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Run one worst-case batch in each process first, and report its memory.")
    ] = False,
    deepspeed: Annotated[
        str | None,
        typer.Option(
            "--deepspeed", metavar="NAME", help="zero2, zero3, zero3-offload, or a DeepSpeed file (launch.deepspeed)."
        ),
    ] = None,
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Divide the model by FSDP2 (launch.fsdp).")] = False,
    form: Format = "table",
) -> None:
    """Train a model; with no argument, GRPO teaches the lab model Knights & Knaves.

    By reinforcement learning, or with `--method sft` by imitation of worked solutions.

    Ends with 0 when finished; 130 after Ctrl-C, 143 after SIGTERM and 129 when its terminal is closed (all save first
    and can be resumed); 1 when training failed; 2 on bad input. With several processes the first failure of any of them
    ends them all.
    """
    from rlvr_cli.launch.checks import check_trackers
    from rlvr_cli.launch.command import check_alone, needs_launcher
    from rlvr_cli.launch.world import world_of_environment
    from rlvr_cli.models.libraries import allow_remote_code

    allow_remote_code(trust_remote_code)
    world = world_of_environment()
    launch = {
        "processes": processes,
        "launcher": launcher,
        "accelerate_config": accelerate_config,
        "deepspeed": deepspeed,
        "fsdp": True if fsdp else None,
    }
    run: RunDir | None = None
    if resume is None:
        asked = with_options(with_own(with_data_dir(overrides, data_dir), data, reward, task), launch)
        loaded = _configured(config_sources(config_files), method, task, model, asked, world)
    else:
        others = bool(config_files or method or task or model or data or reward or data_dir or overwrite)
        others = others or any(value is not None for value in launch.values())
        if overrides and world.processes > 1:
            raise UserError("an outer launcher started this process: give train.rollouts to a --resume without it.")
        run, loaded = _resumed(resume, overrides or [], others=others, print_only=print_script or not world.main)
    if overwrite and loaded.config.run.name is None:
        raise UserError("--overwrite needs the name of the run that it replaces: run.name=NAME.")
    check_trackers(loaded.config.run.track)
    if probe and (submit is not None or print_script or world.processes > 1):
        raise UserError("--probe starts processes of its own, on this machine: leave out --submit and outer launchers.")
    if submit is not None or print_script:
        if world.processes > 1:
            raise UserError("--submit: a launcher started this process (WORLD_SIZE); submit from a shell of your own.")
        flags = ["--trust-remote-code"] if trust_remote_code else []
        _submit(
            submit or "slurm", loaded, run, flags, overwrite=overwrite, print_only=print_script, json=form == "json"
        )
        return
    config = loaded.config
    launched = world.processes == 1 and needs_launcher(config.launch)
    if world.processes == 1 and not launched:
        check_alone(config.launch)
    from rich.console import Console

    console = Console(stderr=form == "json")
    if probe:
        _check_place(config, run, overwrite=overwrite)
        from rlvr_cli.training.probe import probe as run_probe

        measured = run_probe(config)
        sentence = max(measured, key=lambda one: one.peak).sentence(len(measured))
        console.print(for_terminal(sentence), highlight=False, markup=False, soft_wrap=True)
    outcome: RunEnd
    if launched:
        from rlvr_cli.launch import supervise

        if run is None:
            outcome = supervise.start_launched(config, overwrite=overwrite, console=console)
        else:
            outcome = supervise.resume_launched(run, config, console=console)
    else:
        outcome = _train_here(config, run, overwrite=overwrite, console=console, world=world)
    if world.main and form == "json":
        print_json(outcome.run.read_manifest())
    elif world.main and outcome.status == "finished":
        from rlvr_cli.launch.stopping import say

        say(console, _next(config, outcome.run.path))
        if said := outcome.run.read_manifest().get("no_signal"):
            say(console, f"WARNING: {said}")
    if world.processes > 1:
        from rlvr_cli.training.worker import leave

        leave(outcome.exit_code)
    raise typer.Exit(outcome.exit_code)


def _check_place(config: Config, run: RunDir | None, *, overwrite: bool) -> None:
    """Raise UserError where the training cannot begin or go on in its folder, before anything long is done."""
    from rlvr_cli.launch.checks import check_resumable
    from rlvr_cli.runs.folder import RunDir, check_free

    if run is not None:
        check_resumable(run)
    elif config.run.name:
        check_free(RunDir(Path(config.run.dir) / config.run.name), overwrite=overwrite)


def _next(config: Config, run: Path) -> str:
    """What to do with a finished run: an evaluation, on dev problems where its data set has no test problems.

    A configuration that names benchmarks, or the greedy completion alone, says itself what is sampled.
    """
    from rlvr_cli.tasks.data import split_mark
    from rlvr_cli.tasks.sets import data_sets, is_generated

    if config.eval.benchmark:
        return f"next: rlvr eval {run}"
    more = f" --samples {PASS_AT}" if config.eval.samples < PASS_AT else ""
    pass_at = f"{more} --pass-at {PASS_AT}" if config.eval.samples else ""
    data = config.task.data
    if data in data_sets():
        untested = not is_generated(data) and "test" not in data_sets()[data].files
    else:
        untested = split_mark(Path(data)) == "train"
    return f"next: rlvr eval {run}{pass_at}{' --split dev' if untested else ''}"


def _train_here(config: Config, run: RunDir | None, *, overwrite: bool, console: Console, world: World) -> RunEnd:
    """Train in this process: all of the training, or the part of it that an outer launcher started it for."""
    from rlvr_cli.launch.stopping import StopRequest
    from rlvr_cli.launch.world import Elsewhere
    from rlvr_cli.training import run as training

    place = training.RunContext(world, StopRequest(announce=world.main))
    try:
        if run is None:
            return training.start_training(config, overwrite=overwrite, console=console, place=place)
        return training.resume_training(run, console=console, place=place)
    except Elsewhere:
        # Rank 0 says why.
        raise typer.Exit(1) from None


def _configured(
    files: list[Path | SweepRow],
    method: str | None,
    task: str | None,
    model: str | None,
    overrides: list[str],
    world: World,
) -> LoadedConfig:
    """The configuration; an outer launcher's number of processes is that of the run, unless the user says another."""
    from rlvr_cli.config.checks import check_training
    from rlvr_cli.config.load import load

    loaded = load(files, method, task, model, overrides)
    if world.processes > 1 and not loaded.merged.set_by_user(("launch", "processes")):
        loaded = load(files, method, task, model, [*overrides, f"launch.processes={world.processes}"])
    wanted = loaded.config.launch.processes
    if world.processes not in (1, wanted):
        raise UserError(
            f"launch.processes={wanted} ({loaded.origin('launch', 'processes')}), and the launcher that started this "
            f"process started {world.processes} (WORLD_SIZE). Make them equal, or leave one of them out."
        )
    check_training(loaded.config)
    return loaded


def _submit(
    where: str,
    loaded: LoadedConfig,
    run: RunDir | None,
    flags: list[str],
    *,
    overwrite: bool,
    print_only: bool,
    json: bool,
) -> None:
    """Queue the training on a cluster, or print the job that would be queued; ``flags`` are for the job to repeat."""
    if where != "slurm":
        raise UserError(f"--submit {where}: is not known; slurm is.")
    from rlvr_cli.launch import slurm
    from rlvr_cli.models.source import resolve_model

    resolve_model(loaded.config.model.name, revision=loaded.config.model.revision)
    said = slurm.submitted(loaded, run, overwrite=overwrite, print_only=print_only, flags=flags)
    if isinstance(said, str):
        echo(said, end="")
        for lacking in slurm.missing():
            echo(f"note: nothing could be submitted from here: {lacking}", file=sys.stderr)
    elif json:
        print_json(said)
    else:
        echo(
            f"submitted as job {said['job']}: {said['run']}\n"
            f"its output: {said['log']}; to cancel it: scancel {said['job']}"
        )


def _resumed(name: str, overrides: list[str], *, others: bool, print_only: bool) -> tuple[RunDir, LoadedConfig]:
    if others:
        raise UserError(
            "--resume continues a run with its own configuration: leave out --config, --method, --task, --model, "
            "--data, --reward, --data-dir, --overwrite, --processes, --launcher, --accelerate-config, --deepspeed and "
            "--fsdp. Only train.rollouts=N can be given, to extend the run. To change a setting, start a new run."
        )
    if overrides and print_only:
        raise UserError("--print-script changes no run: leave out the overrides.")
    from rlvr_cli.config.load import load, load_config
    from rlvr_cli.runs.folder import find_run
    from rlvr_cli.training.extension import extend, finish_extension

    run = find_run(name, Path(load_config([]).run.dir))
    load_config([run.config_path]).task.check_before()
    if overrides:
        for line in extend(run, overrides):
            print(line, file=sys.stderr)
    elif not print_only:
        finish_extension(run)
    return run, load([run.config_path])
