"""`rlvr runs`: the runs on disk, how far they got and their last numbers."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from rlvr_cli.cli import runs_show, runs_watch
from rlvr_cli.cli.common import Json, echo, print_json
from rlvr_cli.cli.runs_text import DEFAULT_ROOT, Root, accuracy, chosen_root, print_rows, progress, reward

app = typer.Typer(help="List the runs on disk, show one, watch those that are running.", no_args_is_help=True)

Names = list[str] | None


@app.command("list")
def list_command(
    root: Root = None,
    method: Annotated[
        Names, typer.Option("--method", metavar="NAME", help="Of this method, or pattern (`*lopti*`); repeatable.")
    ] = None,
    task: Annotated[Names, typer.Option("--task", metavar="NAME", help="Of this task, or pattern; repeatable.")] = None,
    model: Annotated[
        Names,
        typer.Option("--model", metavar="NAME", help="Of this model (or the last part of its name); repeatable."),
    ] = None,
    status: Annotated[
        Names,
        typer.Option(
            "--status",
            metavar="NAME",
            help="submitted, running, finished, interrupted, failed, killed or damaged; repeatable.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="DATE", help="Created then or later: 2025-01-31, 2025-01-31T12:30, 3d (ago)."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="DATE", help="Created then or before; a day is taken whole.")
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="KEY",
            help="created, finished, name, status, method, task, model, rollout, reward or accuracy.",
        ),
    ] = "created",
    reverse: Annotated[bool, typer.Option("--reverse", help="The greatest or newest first.")] = False,
    as_json: Json = False,
) -> None:
    """List the runs in a folder and in the sweeps in it, oldest first; all filters must fit."""
    from rlvr_cli.runs.listing import make_query, read_runs

    query = make_query(
        methods=method or [],
        tasks=task or [],
        models=model or [],
        statuses=status or [],
        since=since,
        until=until,
        sort=sort,
        reverse=reverse,
    )
    folder = chosen_root(root)
    runs = read_runs(folder) if folder is not None else []
    found = query.select(runs)
    nothing = [f"No run fits all filters; there are {len(runs)} in {folder}:", *query.explained(runs)]
    if as_json:
        print_json(found)
        if runs and not found:
            echo("\n".join(nothing), file=sys.stderr)
    elif not runs:
        echo(f"No runs in {folder or DEFAULT_ROOT}. `rlvr train` starts one.")
    elif not found:
        echo("\n".join(nothing))
    else:
        _print_runs(found)
    if query.conditions and not as_json:
        _print_unfiltered(runs, found)


def _print_runs(found: list[dict[str, Any]]) -> None:
    titles = ("run", "status", "rollouts", "step", "reward", "accuracy", "method", "task", "model", "created")
    rows = [
        (
            run["name"],
            str(run["status"]),
            progress(run["rollout"], run["rollouts_total"]),
            progress(run["step"], run["steps_total"]),
            reward(run["last_metrics"]),
            accuracy(run["last_metrics"]),
            *(str(run[name]) for name in ("method", "task", "model", "created")),
        )
        for run in found
        if not run["damage"]
    ]
    if rows:
        print_rows(titles, *rows)
    for run in sorted(found, key=lambda run: str(run["name"])):
        if run["damage"]:
            echo(f"{run['name']} is damaged: {run['damage']}")


def _print_unfiltered(runs: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    """Say which runs could fit and do not tell."""
    shown = {run["name"] for run in found}
    silent = [str(run["name"]) for run in runs if run["damage"] and run["name"] not in shown]
    if silent:
        some = ", ".join(silent[:5]) + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
        echo(f"Damaged runs fit no filter but --status damaged: {some}", file=sys.stderr)


app.command("show")(runs_show.show)
app.command("watch")(runs_watch.watch)
