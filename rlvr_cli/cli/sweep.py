"""`rlvr sweep`: run the trials of a sweep file, and show, stop or retry them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.cli.command import App, Group
from rlvr_cli.cli.options import Overrides, Speed, TrustRemoteCode
from rlvr_cli.cli.output import ListFormat, echo, show
from rlvr_cli.core.errors import RunError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from rlvr_cli.sweeps.driver import WorkerOptions
    from rlvr_cli.sweeps.folder import SweepDir


# Timeout of `stop` for the trials to save.
STOP_TIMEOUT = 600.0


class _RunByDefault(Group):
    """Group in which `rlvr sweep FILE` is short for `rlvr sweep run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = App(
    cls=_RunByDefault,
    help="Run many trainings from a file, each exactly once even if processes are killed; `rlvr sweep FILE` is short "
    "for `rlvr sweep run FILE`.",
    no_args_is_help=True,
)

Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Concurrent trials. Default: what `slots` allows, or 1."),
]
Submit = Annotated[
    str | None,
    typer.Option(
        "--submit", metavar="slurm", help="Submit the trials as jobs to Slurm (section slurm), --workers at a time."
    ),
]
SweepName = Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep's name in run.dir, its folder, or its file.")]


@app.command("run")
def run_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The sweep file, or a recipe: sweeps/methods.", show_default=False)
    ],
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the trials, the cost and the identical arms; start nothing.")
    ] = False,
    workers: Workers = None,
    submit: Submit = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="PATTERN", help="Only trials whose names match, as `lopti-*`.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", metavar="N", help="Replaces the file's seeds: a number of seeds, or a list as 42,43."),
    ] = None,
    speed: Speed = None,
    trust_remote_code: TrustRemoteCode = False,
    form: ListFormat = "table",
) -> None:
    """Run the trials of FILE, or continue: finished trials are kept, new ones are added.

    Exit codes: 0 all trials finished; 1 some failed; 130 after Ctrl-C, 143 after SIGTERM, 129 when the terminal is
    closed (running trials save first); 2 bad input. With --submit it exits once the trials are in the queue.
    """
    from rlvr_cli.sweeps.expand import expand
    from rlvr_cli.sweeps.spec import read_sweep

    options = _worker_options(workers, trust_remote_code, submit)
    sweep = expand(read_sweep(file), overrides or [], only=only, seeds=seeds)
    for option, value in {"--speed": speed, "--only": only, "--seeds": seeds}.items():
        if sweep.space is not None and value is not None:
            raise UserError(f"{option} needs the trials in advance, which a `search` does not have. Remove one.")
    if dry_run:
        from rlvr_cli.planning.plan import parse_speed
        from rlvr_cli.sweeps import documents

        if sweep.space is not None and submit is None:
            show(form, documents.search_document(sweep))
        else:
            show(form, documents.grid_document(sweep, options, submit=submit is not None, speed=parse_speed(speed)))
        return
    if speed is not None:
        raise UserError("--speed needs --dry-run.")
    from rlvr_cli.sweeps.folder import SweepDir
    from rlvr_cli.sweeps.prepare import check_arms

    check_arms(sweep)
    if submit is not None:
        from rlvr_cli.sweeps import slurm
        from rlvr_cli.sweeps.documents import submitted_document

        show(form, submitted_document(SweepDir(sweep.folder), *slurm.submit_sweep(sweep, options)))
        return
    from rlvr_cli.sweeps.driver import run_sweep

    console = _console(form)
    _finish(SweepDir(sweep.folder), run_sweep(sweep, options, console=console), console, form)


@app.command()
def status(sweep: SweepName, form: ListFormat = "table") -> None:
    """Show the state of each trial of a sweep and the best by its objective."""
    from rlvr_cli.sweeps import documents
    from rlvr_cli.sweeps.folder import find_sweep

    show(form, documents.status_document(find_sweep(sweep)))


@app.command()
def stop(sweep: SweepName) -> None:
    """Stop a sweep after saving its running trials."""
    import os
    import signal
    import socket
    import time
    from contextlib import suppress

    from rlvr_cli.core.files import LOCK
    from rlvr_cli.sweeps import slurm_queue
    from rlvr_cli.sweeps.folder import find_sweep

    folder = find_sweep(sweep)
    here, unknown = folder.is_running(), None
    try:
        jobs = slurm_queue.queued_jobs(folder)
    except UserError as error:
        if not here:
            raise
        jobs, unknown = {}, " ".join(error.problems)
    if not here and not jobs:
        raise UserError(f"{folder.path}: is not running.")
    end = time.monotonic() + STOP_TIMEOUT
    if here:
        pid, _, host = (folder.path / LOCK).read_text(encoding="utf-8").strip().partition("@")
        if host != socket.gethostname():
            raise UserError(f"{folder.path}: runs on {host}. Stop it there.")
        with suppress(ProcessLookupError):  # it has exited in between
            os.kill(int(pid), signal.SIGTERM)
    slurm_queue.cancel_jobs(folder, jobs, end)
    while folder.is_running():
        if time.monotonic() > end:
            raise RunError(f"{folder.path}: stopping, but not all trials have saved after {STOP_TIMEOUT:g} s.")
        time.sleep(0.2)
    if unknown:
        echo(unknown)
    echo(f"stopped; continue with: {folder.read_plan().command}")


@app.command()
def retry(
    sweep: SweepName,
    trials: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TRIAL]...",
            help="Failed trials. Default: all.",
            show_default=False,
        ),
    ] = None,
    workers: Workers = None,
    submit: Submit = None,
    trust_remote_code: TrustRemoteCode = False,
    form: ListFormat = "table",
) -> None:
    """Retry failed trials from their last checkpoints, and continue the sweep.

    With --submit, only these trials.
    """
    from rlvr_cli.sweeps.driver import retry_trials
    from rlvr_cli.sweeps.folder import find_sweep

    options = _worker_options(workers, trust_remote_code, submit)
    folder = find_sweep(sweep)
    if submit is not None:
        from rlvr_cli.sweeps import slurm
        from rlvr_cli.sweeps.documents import submitted_document

        show(form, submitted_document(folder, slurm.submit_retry(folder, trials or [], options)))
        return
    console = _console(form)
    _finish(folder, retry_trials(folder, trials or [], options, console=console), console, form)


def _console(form: str) -> Console:
    from rich.console import Console

    return Console(stderr=form != "table")


def _worker_options(workers: int | None, trust_remote_code: bool, submit: str | None) -> WorkerOptions:
    from rlvr_cli.sweeps.driver import WorkerOptions

    if submit not in (None, "slurm"):
        raise UserError(f"--submit {submit}: must be slurm.")
    return WorkerOptions(workers, ("--trust-remote-code",) if trust_remote_code else ())


def _finish(folder: SweepDir, code: int, console: Console, form: str) -> None:
    from rlvr_cli.launch.stopping import print_line
    from rlvr_cli.runs.trials import evaluation_command
    from rlvr_cli.sweeps.documents import status_document

    document = status_document(folder)
    show(form, document)
    for line in document.after if form != "table" else []:
        print_line(console, line)
    plan = folder.read_plan()
    if code > 1:
        print_line(console, f"saved; continue with: {plan.command}")
    elif code == 1:
        print_line(console, f"fix the cause, then: rlvr sweep retry {folder.path}")
    elif plan.eval is not None:
        print_line(console, f"next: rlvr report {folder.path}")
    elif plan.notes():
        print_line(console, f"next: evaluate all trials: {evaluation_command(vars(plan))}")
    raise typer.Exit(code)
