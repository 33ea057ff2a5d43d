"""`rlvr train`: train a model, or resume a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlvr_cli.cli.command import MORE, NEWEST, key_options
from rlvr_cli.cli.options import (
    TRAINING,
    ConfigFiles,
    Method,
    Model,
    Overrides,
    Task,
    TrustRemoteCode,
    complete_run,
    config_sources,
)
from rlvr_cli.cli.output import Format, echo, print_json, print_waiting, show
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path

if TYPE_CHECKING:
    from rich.console import Console

    from rlvr_cli.config.load import LoadedConfig, SweepRow
    from rlvr_cli.config.schema import Config
    from rlvr_cli.launch.stopping import RunEnd
    from rlvr_cli.launch.world import World
    from rlvr_cli.runs.folder import RunDir


# The k of the `rlvr eval` command that a finished training suggests.
PASS_AT = 32


@key_options(*TRAINING)
def command(
    task: Task = None,
    method: Method = None,
    model: Model = None,
    config_files: ConfigFiles = None,
    overrides: Overrides = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="[RUN]",
            autocompletion=complete_run,
            help="Continue this run (folder or name), or the newest unfinished one; extend it with train.rollouts=N.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", rich_help_panel=MORE, help="Delete a run of the same name first.")
    ] = False,
    submit: Annotated[
        str | None,
        typer.Option(
            "--submit",
            metavar="slurm",
            rich_help_panel=MORE,
            help="Submit the training as a job to Slurm (section slurm).",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            rich_help_panel=MORE,
            help="Start nothing: show the output of `rlvr plan`, or with --submit slurm the job.",
        ),
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    form: Format = "table",
) -> None:
    """Train a model by RL, or by imitation with `--method sft`. By default: GRPO, the lab model, Knights & Knaves.

    Exit codes: 0 finished; 130 after Ctrl-C, 143 after SIGTERM, 129 when the terminal is closed (all save first and can
    be resumed); 1 training failed; 2 bad input. With several processes, the first failure ends them all.
    """
    from rlvr_cli.launch.command import check_single_process, needs_launcher
    from rlvr_cli.launch.world import world_of_environment
    from rlvr_cli.models.libraries import allow_remote_code
    from rlvr_cli.tracking.trackers import check_trackers

    allow_remote_code(trust_remote_code)
    world = world_of_environment()
    run: RunDir | None = None
    if resume is None:
        loaded = _load_config(config_sources(config_files), method, task, model, overrides or [], world)
    else:
        from rlvr_cli.core.layers import OptionOverride

        others = bool(config_files or method or task or model or overwrite)
        others = others or any(isinstance(text, OptionOverride) for text in overrides or [])
        if overrides and world.processes > 1:
            raise UserError(
                "an outer launcher started this process: extend the run with --resume and train.rollouts outside it."
            )
        if resume == NEWEST and world.processes > 1:
            raise UserError("an outer launcher started this process: name the run, as --resume runs/NAME.")
        run, loaded = _load_resumed(resume, overrides or [], others=others, print_only=dry_run or not world.main)
    if overwrite and loaded.config.run.name is None:
        raise UserError("--overwrite needs the name of the run that it replaces: run.name=NAME.")
    check_trackers(loaded.config.track.to)
    if dry_run and submit is None:
        from rlvr_cli.planning.document import plan_document
        from rlvr_cli.planning.plan import build_plan

        show(form, plan_document(build_plan(loaded.config)))
        return
    if submit is not None:
        if world.processes > 1:
            raise UserError("--submit: a launcher started this process (WORLD_SIZE); submit from a plain shell.")
        # The job checks and extends the run.
        flags = ["--trust-remote-code"] if trust_remote_code else []
        flags += [f"train.rollouts={loaded.config.train.rollouts}"] if run is not None and overrides else []
        _submit(submit, loaded, run, flags, overwrite=overwrite, print_only=dry_run, json=form == "json")
        return
    config = loaded.config
    launched = world.processes == 1 and needs_launcher(config.launch)
    if world.processes == 1 and not launched:
        check_single_process(config.launch)
    from rich.console import Console

    console = Console(stderr=form == "json")
    outcome: RunEnd
    if launched:
        from rlvr_cli.launch import torchrun

        if run is None:
            outcome = torchrun.start_launched(config, overwrite=overwrite, console=console)
        else:
            outcome = torchrun.resume_launched(run, config, console=console)
    else:
        outcome = _train_here(config, run, overwrite=overwrite, console=console, world=world)
    if world.main:
        from rlvr_cli.launch.stopping import print_line

        manifest = outcome.run.read_manifest()
        if form == "json":
            print_json(manifest)
        elif outcome.status == "finished":
            print_line(console, _next_command(config, outcome.run.path))
        if outcome.status == "finished" and manifest.get("no_signal"):
            print_line(console, f"WARNING: {manifest['no_signal']}")
    if world.processes > 1:
        from rlvr_cli.training.worker import exit_process

        exit_process(outcome.exit_code)
    raise typer.Exit(outcome.exit_code)


def _next_command(config: Config, run: Path) -> str:
    """Return the next command for a finished run: an evaluation on test or else dev problems, or the report.

    A configuration with benchmarks, or with the greedy completion alone, already determines the samples.
    """
    from rlvr_cli.tasks.data import split_in_name
    from rlvr_cli.tasks.sets import data_sets

    if config.eval.benchmark:
        return f"next: rlvr eval {run}"
    pass_at = f" --pass-at {PASS_AT}" if config.eval.samples_needed else ""
    data = config.task.data
    if data in data_sets():
        untested = not config.task.is_generated and "test" not in data_sets()[data].files
    elif not config.task.is_generated and local_path(data).exists():
        if not (splits := [split for split in ("test", "dev") if _has_split(config, split)]):
            return f"next: rlvr report {run}"
        untested = "test" not in splits
    else:
        untested = split_in_name(Path(data)) == "train"
    return f"next: rlvr eval {run}{pass_at}{' --split dev' if untested else ''}"


def _has_split(config: Config, split: Literal["dev", "test"]) -> bool:
    try:
        return bool(config.task.load(split))
    except UserError:
        return False


def _train_here(config: Config, run: RunDir | None, *, overwrite: bool, console: Console, world: World) -> RunEnd:
    """Train in this process, alone or as a rank of an outer launcher."""
    from rlvr_cli.launch.stopping import StopRequest
    from rlvr_cli.launch.world import PeerFailed

    if world.main:
        print_waiting()
    from rlvr_cli.training import run as training

    context = training.RunContext(world, StopRequest(announce=world.main))
    try:
        if run is None:
            return training.start_training(config, overwrite=overwrite, console=console, context=context)
        return training.resume_training(run, console=console, rollouts=config.train.rollouts, context=context)
    except PeerFailed:
        # Rank 0 reports the cause.
        raise typer.Exit(1) from None


def _load_config(
    files: list[Path | SweepRow],
    method: str | None,
    task: str | None,
    model: str | None,
    overrides: list[str],
    world: World,
) -> LoadedConfig:
    """Load and check the configuration; launch.processes defaults to the world size of an outer launcher."""
    from rlvr_cli.config.checks import check_training
    from rlvr_cli.config.load import load

    loaded = load(files, method, task, model, overrides, import_files=True, from_start=True)
    if world.processes > 1 and not loaded.merged.set_by_user(("launch", "processes")):
        overrides = [*overrides, f"launch.processes={world.processes}"]
        loaded = load(files, method, task, model, overrides, import_files=True, from_start=True)
    processes = loaded.config.launch.processes
    if world.processes not in (1, processes):
        raise UserError(
            f"launch.processes={processes} ({loaded.origin('launch', 'processes')}) and WORLD_SIZE={world.processes} "
            "of the outer launcher differ. Make them equal, or remove one."
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
    """Submit the training to Slurm, or print the job; ``flags`` are added to its command."""
    if where != "slurm":
        raise UserError(f"--submit {where}: must be slurm.")
    from rlvr_cli.launch import slurm, slurm_state
    from rlvr_cli.models.source import resolve_model

    resolve_model(loaded.config.model.name, revision=loaded.config.model.revision)
    if print_only:
        echo(slurm.render_job(loaded, run, flags), end="", unwrapped=True)
        return
    job_run, job = slurm.submit(loaded, run, flags, overwrite=overwrite)
    log = job_run.path / slurm_state.FOLDER / f"{job}_0_log.out"
    if json:
        print_json({"run": str(job_run.path), "job": job, "log": str(log)})
    else:
        echo(f"submitted as job {job}: {job_run.path}\nits output: {log}; to cancel it: scancel {job}")


def _load_resumed(name: str, overrides: list[str], *, others: bool, print_only: bool) -> tuple[RunDir, LoadedConfig]:
    if others:
        raise UserError(
            "--resume continues a run with its own configuration. Remove --config, --method, --task, --model, --data, "
            "--reward, --data-dir, --processes and --overwrite. Only train.rollouts=N can change, to extend the run. "
            "To change another setting, start a new run."
        )
    if overrides and print_only:
        raise UserError("--dry-run with --resume cannot extend a run. Remove the overrides.")
    from rlvr_cli.config.load import load_config
    from rlvr_cli.core.user_code import edited_file_warnings
    from rlvr_cli.runs.folder import find_run
    from rlvr_cli.runs.listing import find_newest_unfinished
    from rlvr_cli.training.extension import check_extension, load_extended

    root = Path(load_config([]).run.dir)
    if name == NEWEST:
        run = find_newest_unfinished(root)
        echo(f"--resume: {run.path} is the newest unfinished run", file=sys.stderr)
    else:
        run = find_run(name, root)
    if overrides:
        check_extension(run, overrides)
    loaded = load_extended(run, overrides)
    for line in edited_file_warnings(run.read_manifest()):
        echo(line, file=sys.stderr)
    loaded.config.task.check_requirements()
    return run, loaded
