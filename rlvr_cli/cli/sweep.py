"""`rlvr sweep`: many trainings from one file, and how they stand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rlvr_cli.cli.command import App
from rlvr_cli.cli.options import Overrides, Speed, TrustRemoteCode
from rlvr_cli.cli.output import Format, echo, plain_table, print_json, print_table
from rlvr_cli.core.errors import RunError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from rlvr_cli.planning.plan import Speed as Measured
    from rlvr_cli.sweeps.driver import Orders, SweepEnd
    from rlvr_cli.sweeps.expand import Sweep
    from rlvr_cli.sweeps.screen import Standing
    from rlvr_cli.sweeps.slurm import Submitted
    from rlvr_cli.sweeps.slurm_queue import SlurmTask


# How long `stop` waits for the trials to save.
STOP_SECONDS = 600.0
# So many tasks of a cluster are named by `status`.
SHOWN_TASKS = 6


class _RunByDefault(TyperGroup):
    """`rlvr sweep FILE` is `rlvr sweep run FILE`: anything that is neither a command nor --help is a file to run."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = App(
    cls=_RunByDefault,
    help="Run many trainings from one file, each once, also when processes are killed; `rlvr sweep FILE` is "
    "`rlvr sweep run FILE`.",
    no_args_is_help=True,
)

Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="Trials at a time. Default: as many as `slots` fit, or 1."),
]
Submit = Annotated[
    str | None,
    typer.Option(
        "--submit", metavar="slurm", help="Queue the trials as jobs of a cluster (section slurm), N at a time."
    ),
]
SweepName = Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep's name in run.dir, its folder, or its file.")]


@app.command("run")
def run_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The sweep file.", show_default=False)],
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the trials, the cost and the identical arms; start nothing.")
    ] = False,
    workers: Workers = None,
    submit: Submit = None,
    only: Annotated[
        str | None, typer.Option("--only", metavar="PATTERN", help="Only trials of such names, as `lopti-*`.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N", help="Seeds in place of the file's: how many, or as 42,43.")
    ] = None,
    speed: Speed = None,
    trust_remote_code: TrustRemoteCode = False,
    form: Format = "table",
) -> None:
    """Run every trial that FILE describes, or continue: finished trials stay, new ones are added.

    Ends with 0 when all trials are finished; 1 when some have failed; 130 after Ctrl-C, 143 after SIGTERM and 129
    when its terminal is closed (all running trials save first); 2 on bad input. With --submit it ends when the trials
    are in the queue.
    """
    from rlvr_cli.sweeps.expand import expand
    from rlvr_cli.sweeps.spec import read_sweep

    orders = _orders(workers, trust_remote_code, submit)
    sweep = expand(read_sweep(file), overrides or [], only=only, seeds=seeds)
    for option, value in {"--speed": speed, "--only": only, "--seeds": seeds}.items():
        if sweep.space is not None and value is not None:
            raise UserError(f"{option}: is for grids, whose trials are known before they are run.")
    if dry_run and sweep.space is not None and submit is None:
        from rlvr_cli.cli.sweep_search import dry_run_search

        dry_run_search(sweep, as_json=form == "json")
        return
    if dry_run:
        _dry_run(sweep, orders, submit=submit, speed_of=speed, as_json=form == "json")
        return
    if speed is not None:
        raise UserError("--speed is for --dry-run; give both, or neither.")
    if submit is not None:
        from rlvr_cli.sweeps import slurm

        say_submitted(slurm.submit_sweep(sweep, orders), as_json=form == "json")
        return
    from rlvr_cli.sweeps.driver import run_sweep

    console = _console(form == "json")
    _finish(run_sweep(sweep, orders, console=console), console, as_json=form == "json")


@app.command()
def status(sweep: SweepName, form: Format = "table") -> None:
    """Show the state of each trial of a sweep, and the best by its objective."""
    from rlvr_cli.cli.sweep_search import ranking_json, show_ranking, show_search
    from rlvr_cli.core.text import some
    from rlvr_cli.sweeps.folder import find_sweep
    from rlvr_cli.sweeps.screen import standings, state_counts, table
    from rlvr_cli.sweeps.slurm_queue import in_queue, with_queue

    folder = find_sweep(sweep)
    plan = folder.read_plan()
    try:
        tasks, unknown = in_queue(folder), None
    except UserError as error:
        tasks, unknown = {}, " ".join(error.problems)
    found = with_queue(standings(folder, plan), tasks)
    running = bool(tasks) or folder.running()
    dropped = [entry.name for entry in plan.trials if not entry.named]
    if form == "json":
        print_json(
            {
                "sweep": plan.name,
                "folder": str(folder.path),
                "running": running,
                "trials": with_jobs(found, tasks),
                "queue_unknown": unknown,
                "no_longer_named": dropped,
                **ranking_json(folder, plan, found),
            }
        )
        return
    print_table(table(found))
    echo(f"\n{folder.path}: {state_counts(found)}; {'running' if running else 'not running'}")
    if tasks:
        echo(f"in SLURM: {some([f'{trial} {task.id}' for trial, task in tasks.items()], SHOWN_TASKS)}")
    if unknown:
        echo(unknown)
    for one in found:
        if one.look.state == "failed":
            echo(f"{one.look.entry.name} failed: {one.look.reason} (output: {folder.output_path(one.look.entry)})")
    if dropped:
        echo(f"no longer named by the sweep file: {', '.join(dropped)}")
    show_search(plan, found, echo)
    show_ranking(folder, plan, found, echo)


@app.command()
def stop(sweep: SweepName) -> None:
    """Save every running trial of a sweep, and end it."""
    import os
    import signal
    import time

    from rlvr_cli.core.files import LOCK
    from rlvr_cli.sweeps import slurm_queue
    from rlvr_cli.sweeps.folder import find_sweep

    folder = find_sweep(sweep)
    here, unknown = folder.running(), None
    try:
        tasks = slurm_queue.in_queue(folder)
    except UserError as error:
        if not here:
            raise
        tasks, unknown = {}, " ".join(error.problems)
    if not here and not tasks:
        raise UserError(f"{folder.path}: is not running.")
    end = time.monotonic() + STOP_SECONDS
    if here:
        os.kill(int((folder.path / LOCK).read_text(encoding="utf-8")), signal.SIGTERM)
    slurm_queue.cancel_jobs(folder, tasks, end)
    while folder.running():
        if time.monotonic() > end:
            raise RunError(f"{folder.path}: was asked to stop, and its trials are not saved yet.")
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
            help="Failed trials, or trials that a search gave up. Default: all failed ones.",
            show_default=False,
        ),
    ] = None,
    workers: Workers = None,
    submit: Submit = None,
    trust_remote_code: TrustRemoteCode = False,
    form: Format = "table",
) -> None:
    """Try failed trials again, from their last checkpoints, or finish pruned ones, and continue the sweep.

    With --submit, these trials alone.
    """
    from rlvr_cli.sweeps.driver import retry_trials
    from rlvr_cli.sweeps.folder import find_sweep

    orders = _orders(workers, trust_remote_code, submit)
    folder = find_sweep(sweep)
    if submit is not None:
        from rlvr_cli.sweeps import slurm

        say_submitted(slurm.submit_retry(folder, trials or [], orders), as_json=form == "json")
        return
    console = _console(form == "json")
    ended = retry_trials(folder, trials or [], orders, console=console)
    _finish(ended, console, as_json=form == "json")


def _console(as_json: bool) -> Console:
    from rich.console import Console

    return Console(stderr=as_json)


def _orders(workers: int | None, trust_remote_code: bool, submit: str | None) -> Orders:
    from rlvr_cli.sweeps.driver import Orders

    if submit not in (None, "slurm"):
        raise UserError(f"--submit {submit}: is not known; slurm is.")
    return Orders(workers, ("--trust-remote-code",) if trust_remote_code else ())


def _finish(ended: SweepEnd, console: Console, *, as_json: bool) -> None:
    """Show how the sweep ended and what to do next, and exit with its code."""
    from rlvr_cli.cli.sweep_search import ranking_json, show_ranking, show_search
    from rlvr_cli.launch.stopping import say
    from rlvr_cli.sweeps.screen import state_counts, table

    folder = ended.folder
    plan = folder.read_plan()
    if as_json:
        found = [one.as_json() for one in ended.standings]
        print_json({"folder": str(folder.path), "trials": found, **ranking_json(folder, plan, ended.standings)})
    else:
        print_table(table(ended.standings))
    say(console, f"\n{folder.path}: {state_counts(ended.standings)}")
    failed = [one.look for one in ended.standings if one.look.state == "failed"]
    for look in failed:
        say(console, f"{look.entry.name} failed: {look.reason} (output: {folder.output_path(look.entry)})")
    if not as_json:
        show_search(plan, ended.standings, echo)
        show_ranking(folder, plan, ended.standings, echo)
    if ended.exit_code > 1:
        say(console, f"saved; continue with: {plan.command}")
    elif failed:
        say(console, f"fix the cause, then: rlvr sweep retry {folder.path}")
    raise typer.Exit(ended.exit_code)


def _dry_run(sweep: Sweep, orders: Orders, *, submit: str | None, speed_of: str | None, as_json: bool) -> None:
    """What the sweep would do: its trials, what is done of them, the cost of the rest, identical arms, and its jobs."""
    from dataclasses import asdict

    from rlvr_cli.core.text import duration_in_words
    from rlvr_cli.sweeps.folder import SweepDir
    from rlvr_cli.sweeps.prepare import Cost, prepare_sweep, same_arms, same_gradient_sentences, total
    from rlvr_cli.sweeps.rows import reported
    from rlvr_cli.sweeps.screen import standings

    folder = SweepDir(sweep.folder)
    prepared = prepare_sweep(sweep, folder)
    found = standings(folder, prepared.plan)
    costs = {one.look.entry.name: Cost.of_entry(one.look.entry) for one in found}
    todo = [one for one in found if not one.look.trained]
    cost = total([costs[one.look.entry.name] for one in todo])
    same = same_arms(sweep.trials)
    speed = _speed(folder, [one.look.entry.name for one in found if one.look.trained], speed_of)
    seconds = _seconds(sweep, {one.look.entry.id for one in todo}, speed)
    number = orders.workers or (max(len(todo), 1) if submit else 1)
    seconds = None if seconds is None else seconds / number
    scripts = []
    if submit:
        from rlvr_cli.sweeps.slurm import scripts as jobs

        scripts = jobs(sweep, folder, prepared.plan, orders)
    tables = reported(sweep.file, {trial.row for trial in sweep.trials})
    if as_json:
        print_json(
            {
                "sweep": sweep.file.name,
                "folder": str(folder.path),
                "trials": [{**one.as_json(), **asdict(costs[one.look.entry.name])} for one in found],
                "to_do": {"trials": len(todo), **asdict(cost)},
                "seconds": seconds,
                "speed": None if speed is None else speed.source,
                "same_gradient": [
                    {"trials": list(one.names), "when": one.when, "note": one.sentence()} for one in same
                ],
                "reported": tables,
                "notes": list(prepared.notes),
                **({"scripts": scripts} if submit else {}),
            }
        )
        return
    made = plain_table("trial", "status", "method", "seed", "rollouts", "completions", "optimizer steps")
    for one in found:
        entry = one.look.entry
        numbers = (entry.rollouts, entry.completions, entry.steps)
        made.add_row(entry.name, one.look.state, entry.method, str(entry.seed), *(f"{number:,}" for number in numbers))
    print_table(made)
    echo(
        f"\n{len(found)} trials in {folder.path}, {len(todo)} to do: {cost.rollouts:,} rollouts, "
        f"{cost.completions:,} completions, {cost.steps:,} optimizer steps"
    )
    if todo and seconds is not None and speed is not None:
        echo(f"about {duration_in_words(seconds)} with {number} worker{'s' if number > 1 else ''}, by {speed.source}")
    for note in (*prepared.notes, *same_gradient_sentences(same)):
        echo(note)
    for printed in tables:
        echo(f"\nreported in {printed['place']} ({printed['unit']}), not ours:")
        made = plain_table("trial", *printed["columns"])
        for name, values in printed["rows"].items():
            made.add_row(name, *("-" if value is None else f"{value:g}" for value in values))
        print_table(made)
    for script in scripts:
        echo(f"\n{script}", end="")


def _speed(folder: Any, finished: list[str], speed_of: str | None) -> Measured | None:
    """The speed of RUN, else of the sweep's own first finished trial; None where there is neither."""
    from rlvr_cli.planning.plan import measured_speed
    from rlvr_cli.planning.plan import speed_of as told
    from rlvr_cli.runs.folder import RunDir

    if speed_of is not None:
        return told(speed_of)
    return measured_speed(RunDir(folder.path / finished[0])) if finished else None


def _seconds(sweep: Sweep, todo: set[str], speed: Measured | None) -> float | None:
    """Seconds of the trials ``todo``, one after the other, completions as long as in the measured run."""
    from rlvr_cli.planning.plan import duration
    from rlvr_cli.sweeps.prepare import cost_of

    if speed is None:
        return None
    lengths = [
        duration(cost_of(trial.config).completions, trial.config.rollout.max_new_tokens, speed)
        for trial in sweep.trials
        if trial.id in todo
    ]
    return sum(one.at_most if one.expected is None else one.expected for one in lengths)


def say_submitted(submitted: Submitted, *, as_json: bool) -> None:
    """Say what is in the queue, and what was left out."""
    from rlvr_cli.sweeps.screen import state_counts, table

    folder = submitted.folder
    if as_json:
        print_json(
            {
                "folder": str(folder.path),
                "jobs": [{"job": one.job, "trials": one.trials} for one in submitted.submissions],
                "trials": with_jobs(submitted.standings, submitted.tasks),
                "notes": submitted.notes,
            }
        )
        return
    print_table(table(submitted.standings))
    echo(f"\n{folder.path}: {state_counts(submitted.standings)}")
    for note in submitted.notes:
        echo(note)
    for one in submitted.submissions:
        number = len(one.trials)
        echo(f"submitted {number} trial{'s' if number > 1 else ''} as the array {one.job}")
    if not submitted.submissions:
        echo("nothing was submitted: every waiting trial is in the queue already")
    if any(one.look.state == "failed" for one in submitted.standings):
        echo(f"fix the causes, then: rlvr sweep retry {folder.path} --submit slurm")
    echo(f"see how they stand: rlvr sweep status {folder.path}; to save and end them: rlvr sweep stop {folder.path}")


def with_jobs(standings: list[Standing], tasks: Mapping[str, SlurmTask]) -> list[dict[str, Any]]:
    """The trials as JSON, each with its task's number in SLURM; None where it has none there."""
    own = [(one, tasks.get(one.look.entry.name)) for one in standings]
    return [{**one.as_json(), "job": task.id if task else None} for one, task in own]
