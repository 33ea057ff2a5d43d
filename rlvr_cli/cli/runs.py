"""`rlvr runs`: the runs on disk, how far they got and their last numbers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.cli import runs_show, runs_watch
from rlvr_cli.cli.output import ListFormat, echo, show
from rlvr_cli.cli.runs_text import DEFAULT_ROOT, Root, accuracy, chosen_root, print_rows, progress, reward

if TYPE_CHECKING:
    from rlvr_cli.core.table import Document

app = typer.Typer(help="List the runs on disk, show one, watch those that are running.", no_args_is_help=True)

Names = list[str] | None
TITLES = ("run", "status", "rollouts", "step", "reward", "accuracy", "method", "task", "model", "created")


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
    form: ListFormat = "table",
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
    if form != "table":
        show(form, _document(found))
        if runs and not found:
            echo("\n".join(nothing), file=sys.stderr)
    elif not runs:
        echo(f"No runs in {folder or DEFAULT_ROOT}. `rlvr train` starts one.")
    elif not found:
        echo("\n".join(nothing))
    else:
        _print_runs(found)
    if query.conditions and form == "table":
        _print_unfiltered(runs, found)


def _rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
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


def _damaged(found: list[dict[str, Any]]) -> list[str]:
    broken = sorted((run for run in found if run["damage"]), key=lambda run: str(run["name"]))
    return [f"{run['name']} is damaged: {run['damage']}" for run in broken]


def _document(found: list[dict[str, Any]]) -> Document:
    from rlvr_cli.core.table import Document, Table

    return Document(tables=[Table("", TITLES, _rows(found))], data=found, after=_damaged(found), rows=found)


def _print_runs(found: list[dict[str, Any]]) -> None:
    rows = _rows(found)
    if rows:
        print_rows(TITLES, *rows)
    for line in _damaged(found):
        echo(line)


def _print_unfiltered(runs: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    """Say which runs could fit and do not tell."""
    shown = {run["name"] for run in found}
    silent = [str(run["name"]) for run in runs if run["damage"] and run["name"] not in shown]
    if silent:
        some = ", ".join(silent[:5]) + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
        echo(f"Damaged runs fit no filter but --status damaged: {some}", file=sys.stderr)


app.command("show")(runs_show.show)
app.command("watch")(runs_watch.watch)
