"""`rlvr runs`: the runs on disk, how far they got and their last numbers."""

from __future__ import annotations

import dataclasses
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
    no_index: Annotated[
        bool, typer.Option("--no-index", help="Read every manifest, also where there is an index.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the runs in a folder and in the sweeps in it, oldest first; all filters must fit."""
    from rlvr_cli.runs.index import Listing, read_runs
    from rlvr_cli.runs.query import make_query

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
    listing = read_runs(folder, use_index=not no_index) if folder is not None else Listing([])
    for note in listing.notes:
        echo(note, file=sys.stderr)
    found = query.select(listing.runs)
    nothing = [f"No run fits all filters; there are {len(listing.runs)} in {folder}:", *query.explained(listing.runs)]
    if as_json:
        print_json(found)
        if listing.runs and not found:
            echo("\n".join(nothing), file=sys.stderr)
    elif not listing.runs:
        echo(f"No runs in {folder or DEFAULT_ROOT}. `rlvr train` starts one.")
    elif not found:
        echo("\n".join(nothing))
    else:
        _print_runs(found)
    if query.conditions and not as_json:
        _print_unfiltered(listing.runs, found)


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


@app.command()
def index(
    root: Root = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Read every manifest, changed or not.")] = False,
    as_json: Json = False,
) -> None:
    """Make or update the index that `list` reads in place of unchanged manifests; it may be deleted at any time."""
    from rlvr_cli.runs.index import update_index

    # A folder that is not there has no index, the default one too.
    folder = chosen_root(root or DEFAULT_ROOT)
    assert folder is not None
    update = update_index(folder, rebuild=rebuild)
    if as_json:
        print_json({**dataclasses.asdict(update), "path": str(update.path)})
        return
    if update.note is not None:
        echo(f"{update.note}. It was made anew.", file=sys.stderr)
    echo(f"{update.path}: {update.indexed} of {update.runs} runs; {update.read} read, {update.removed} gone")
    if update.moving:
        echo(f"  {update.moving} running, waiting, or changed within the last seconds: always read directly")
    if update.damaged:
        echo(f"  {update.damaged} damaged: always read directly, `rlvr runs list` names them")


app.command("show")(runs_show.show)
app.command("watch")(runs_watch.watch)
