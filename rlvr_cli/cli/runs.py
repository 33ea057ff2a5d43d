"""`rlvr runs`: the runs on disk, their progress and last metrics."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.cli import runs_samples, runs_watch
from rlvr_cli.cli.command import App
from rlvr_cli.cli.options import RUNS, Runs, check_root_option
from rlvr_cli.cli.output import (
    Format,
    ListFormat,
    echo,
    format_accuracy,
    format_progress,
    format_reward,
    format_value,
    print_json,
    print_table,
    show,
)
from rlvr_cli.core.errors import RunError, UserError, collect_problems
from rlvr_cli.core.terminal import Cell, format_state, width

if TYPE_CHECKING:
    from rlvr_cli.runs.folder import RunDir
    from rlvr_cli.store.training import Points


WIDEST_CURVE = 60
NARROWEST_CURVE = 16
ENDS = ("first", "last", "least", "greatest")
# Columns of their values, with gaps.
_ENDS_WIDTH = 44
_LISTS = ("last_metrics", "curves", "alerts", "checkpoints", "evaluations")


def show_run(
    run: Annotated[
        str, typer.Argument(help="A run's name in the folder of runs (`sweep/run` in a sweep), or its path.")
    ],
    root: Runs = RUNS,
    form: Format = "table",
) -> None:
    """Show one run: status, progress, learning curves, last metrics, alerts, checkpoints and evaluations."""
    from rlvr_cli.collapse.alerts import PREFIX
    from rlvr_cli.launch.slurm_state import has_ended
    from rlvr_cli.runs.folder import find_run
    from rlvr_cli.runs.listing import format_local_time, summarize_run
    from rlvr_cli.store.training import curve_as_json, learning_curves

    path = find_run(run, root).path
    contents, rows = _read_contents(path)
    curves = learning_curves(rows)
    (summary,) = _add_jobs([summarize_run(path)])
    details = {**summary, **contents}
    if form == "json":
        print_json({**details, "curves": {name: curve_as_json(points) for name, points in curves.items()}})
        return
    fields = {name: value for name, value in details.items() if name not in _LISTS and value is not None}
    fields |= {name: format_local_time(fields[name]) for name in ("created", "finished") if name in fields}
    print_table(("", ""), [(name.replace("_", " "), format_value(value)) for name, value in fields.items()])
    if curves:
        length = 1 + max(row["rollout"] for row in rows)
        room = width() - max(map(len, curves)) - _ENDS_WIDTH
        rows_of_curves = curve_rows(curves, length, min(WIDEST_CURVE, max(NARROWEST_CURVE, room)))
        echo()
        print_table((f"rollouts 1-{length}", "", *ENDS), rows_of_curves)
        echo()
    table: list[tuple[str, str]] = []
    for name, value in details["last_metrics"].items():
        if name in fields:
            continue  # printed above
        if isinstance(value, dict):
            table += [(f"last {name} {inner}", format_value(number)) for inner, number in value.items()]
        # Active alerts have separate lines below.
        elif not name.startswith(PREFIX):
            table.append((f"last {name}", format_value(value)))
    for kind in ("alert", "checkpoint", "evaluation"):
        table += [(kind, text) for text in details[f"{kind}s"]]
    if table:
        print_table(("", ""), table)
    if details["slurm_state"] and has_ended(details["slurm_state"]):
        echo(f"its job has ended; continue with: rlvr train --resume {shlex.quote(str(path))} --submit slurm")


def _add_jobs(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the summaries with `slurm_job` and, for unfinished runs, `slurm_state` (else None)."""
    from rlvr_cli.launch.slurm_state import find_last_job, job_states

    jobs = {run["path"]: find_last_job(Path(run["path"])) for run in runs}
    unfinished = [run["path"] for run in runs if run["status"] not in ("finished", "damaged")]
    states: dict[str, str] = {}
    with contextlib.suppress(UserError):  # without Slurm on this machine, states stay None
        states = job_states({job: Path(path).name for path in unfinished if (job := jobs[path])})
    rows = []
    for run in runs:
        job = jobs[run["path"]]
        state = states.get(job or "")
        # On a network file system the lock of another machine may be invisible.
        status = "running" if run["status"] == "killed" and state == "RUNNING" else run["status"]
        rows.append({**run, "status": status, "slurm_job": job, "slurm_state": state})
    return rows


def _read_error(run: RunDir) -> str | None:
    try:
        manifest = run.read_manifest()
    except RunError:  # the summary reports the damage
        return None
    error = manifest.get("error")
    return error if manifest.get("status") == "failed" and isinstance(error, str) else None


def curve_rows(curves: Mapping[str, Points], length: int, columns: int) -> list[tuple[str, ...]]:
    """Return a row per curve: its name, its line of at most ``columns`` characters, and its values (``ENDS``)."""
    from rlvr_cli.core.sparkline import sparkline
    from rlvr_cli.store.training import ends

    return [
        (
            name,
            sparkline(points, length, columns),
            *("-" if value is None else f"{value:.4g}" for value in ends(points).values()),
        )
        for name, points in curves.items()
    ]


def _read_contents(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return alerts, checkpoints, evaluations and damage of the run, and the rows of its metrics.jsonl."""
    from rlvr_cli.collapse.alerts import alert_lines
    from rlvr_cli.core.files import read_jsonl
    from rlvr_cli.runs.checkpoints import Checkpoint, scan_checkpoints
    from rlvr_cli.runs.folder import RunDir
    from rlvr_cli.runs.records import damaged_records, read_seal
    from rlvr_cli.store.training import filter_step_rows

    run = RunDir(path)
    checkpoints = scan_checkpoints(run.checkpoints_dir)
    faults: list[str] = []
    lines: list[dict[str, Any]] = []
    with collect_problems(faults):
        lines = read_jsonl(run.metrics_path)
        faults += damaged_records(run, read_seal(run) or {})
    rows = filter_step_rows(lines)
    if len(rows) < len(lines):
        faults.append(f"{run.metrics_path}: {len(lines) - len(rows)} lines are not optimizer steps.")
    contents = {
        **({"damage": "; ".join(faults)} if faults else {}),
        **({"error": reason} if (reason := _read_error(run)) else {}),
        "alerts": alert_lines(rows),
        "checkpoints": [
            str(item.path) if isinstance(item, Checkpoint) else f"{item.path} (damaged: {item.reason})"
            for item in checkpoints
        ],
        "evaluations": sorted(str(metrics.parent) for metrics in run.eval_dir.glob("**/metrics.json")),
    }
    return contents, rows


app = App(help="List the runs on disk, show one or its completions, watch the running ones.", no_args_is_help=True)

TITLES = ("run", "status", "rollouts", "step", "reward", "accuracy", "method", "task", "model", "created")


@app.command("list")
def list_command(
    filters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIELD=VALUE]...",
            help="Select runs by method, task, model (names or patterns, `method=*lopti*`) or status.",
            show_default=False,
        ),
    ] = None,
    root: Runs = RUNS,
    form: ListFormat = "table",
) -> None:
    """List the runs in a folder and its sweeps, oldest first; all filters must match."""
    from rlvr_cli.runs.listing import read_runs, select_runs

    folder = check_root_option(root)
    runs = _add_jobs(read_runs(folder)) if folder is not None else []
    matches = select_runs(runs, filters or [])
    if form != "table":
        from rlvr_cli.core.table import ResultDocument, Table

        table = Table("", TITLES, _rows(matches))
        show(form, ResultDocument(tables=[table], data=matches, after=_damage_lines(matches), rows=matches))
    elif not runs:
        echo(f"No runs in {root}. `rlvr train` starts one.")
    elif not matches:
        echo(f"None of the {len(runs)} runs in {folder} matches {' '.join(filters or [])}.")
    else:
        if rows := _rows(matches):
            print_table(TITLES, rows, unwrapped=True)
        for line in _damage_lines(matches):
            echo(line)


def _rows(runs: list[dict[str, Any]]) -> list[tuple[Cell, ...]]:
    from rlvr_cli.runs.listing import format_local_time

    return [
        (
            run["name"],
            _status(run),
            format_progress(run["rollout"], run["rollouts_total"]),
            format_progress(run["step"], run["steps_total"]),
            format_reward(run["last_metrics"]),
            format_accuracy(run["last_metrics"]),
            *(str(run[name]) for name in ("method", "task", "model")),
            format_local_time(run["created"]),
        )
        for run in runs
        if not run["damage"]
    ]


def _status(run: dict[str, Any]) -> Cell:
    from rlvr_cli.collapse.alerts import active_alerts

    job = f"job {run['slurm_job']} {run['slurm_state']}" if run["slurm_state"] else ""
    more = [text for text in (active_alerts(run["last_metrics"]), job) if text]
    return format_state(str(run["status"]), "".join(f", {text}" for text in more))


def _damage_lines(runs: list[dict[str, Any]]) -> list[str]:
    damaged = sorted((run for run in runs if run["damage"]), key=lambda run: str(run["name"]))
    return [f"{run['name']} is damaged: {run['damage']}" for run in damaged]


app.command("show")(show_run)
app.command("samples")(runs_samples.samples)
app.command("watch")(runs_watch.watch)
