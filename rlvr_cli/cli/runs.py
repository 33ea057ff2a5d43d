"""`rlvr runs`: the runs on disk, how far they got and their last numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rlvr_cli.cli.common import Json, plain_table, print_json, print_table
from rlvr_cli.config.errors import RunError

app = typer.Typer(help="List the runs on disk, or show one.", no_args_is_help=True)

Root = Annotated[Path, typer.Option("--dir", metavar="FOLDER", help="Folder that holds the runs (run.dir).")]


@app.command("list")
def list_command(root: Root = Path("runs"), as_json: Json = False) -> None:
    """List the runs in a folder, oldest first."""
    found = [summary(path) for path in _run_folders(root)]
    if as_json:
        print_json(found)
        return
    if not found:
        print(f"No runs in {root}. `rlvr train` starts one.")
        return
    table = plain_table("run", "status", "rollouts", "step", "reward", "accuracy", "model", "created")
    for run in found:
        if run["damage"]:
            continue
        last = run["last_metrics"]
        table.add_row(
            run["name"],
            run["status"],
            _progress(run["rollout"], run["rollouts_total"]),
            _progress(run["step"], run["steps_total"]),
            _reward(last),
            _accuracy(last),
            str(run["model"]),
            str(run["created"]),
        )
    print_table(table)
    for run in sorted(found, key=lambda run: str(run["name"])):
        if run["damage"]:
            print(f"{run['name']} is damaged: {run['damage']}")


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run's name in the folder of runs, or its path.")],
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Show one run: status, progress, last metrics, alerts, checkpoints and evaluations."""
    from rlvr_cli.runs.alerts import Span
    from rlvr_cli.runs.directory import find_run

    path = find_run(run, root).path
    details = {**summary(path), **_contents(path)}
    if as_json:
        print_json(details)
        return
    table = plain_table("", "")
    table.show_header = False
    for name, value in details.items():
        if name in ("last_metrics", "alerts", "checkpoints", "evaluations") or value is None:
            continue
        table.add_row(name.replace("_", " "), _text(value))
    for name, value in details["last_metrics"].items():
        table.add_row(f"last {name}", _text(value))
    for alert in details["alerts"]:
        table.add_row("alert", str(Span(**alert)))
    for checkpoint in details["checkpoints"]:
        table.add_row("checkpoint", checkpoint)
    for evaluation in details["evaluations"]:
        table.add_row("evaluation", evaluation)
    print_table(table)


def summary(path: Path) -> dict[str, Any]:
    """What a run's manifest says, with `damage` (a reason, or None) and the status corrected for a dead process."""
    from rlvr_cli.runs.directory import RunDir
    from rlvr_cli.runs.locks import is_held

    run = RunDir(path)
    try:
        manifest = run.read_manifest()
    except RunError as error:
        return {"name": run.name, "path": str(path), "damage": str(error), "last_metrics": {}}
    status = manifest.get("status")
    if status == "running" and not is_held(path):
        status = "killed"
    fields = ("method", "task", "model", "seed", "created", "finished")
    counts = ("rollout", "rollouts_total", "step", "steps_total")
    last = manifest.get("last_metrics")
    return {
        "name": run.name,
        "path": str(path),
        "damage": None,
        "status": status,
        **{name: manifest.get(name) for name in (*fields, *counts)},
        "last_metrics": last if isinstance(last, dict) else {},
    }


def _run_folders(root: Path) -> list[Path]:
    """Every folder that is, or was, a run: oldest first, those without a readable manifest at the end."""
    from rlvr_cli.runs.directory import list_runs

    known = [run.path for run in list_runs(root)]
    broken = sorted(path.parent for path in root.glob("*/config.yaml") if path.parent not in known)
    return known + broken


def _contents(path: Path) -> dict[str, Any]:
    from rlvr_cli.launch.slurm import job_of
    from rlvr_cli.runs.alerts import alert_spans
    from rlvr_cli.runs.checkpoints import Checkpoint, survey
    from rlvr_cli.runs.directory import RunDir
    from rlvr_cli.runs.records import read_jsonl

    run = RunDir(path)
    found = survey(run.checkpoints_dir)
    damage = {}
    try:
        rows = read_jsonl(run.metrics_path)
    except RunError as error:
        rows, damage = [], {"damage": str(error)}
    job = job_of(path)
    return {
        **damage,
        **({"slurm_job": job} if job else {}),
        "alerts": [span.as_json() for span in alert_spans(rows)],
        "checkpoints": [
            str(item.path) if isinstance(item, Checkpoint) else f"{item.path} (damaged: {item.reason})"
            for item in found
        ],
        "evaluations": sorted(str(metrics.parent) for metrics in run.eval_dir.glob("**/metrics.json")),
    }


def _progress(done: Any, total: Any) -> str:
    return f"{_text(done)}/{_text(total)}"


def _reward(last: dict[str, Any]) -> str:
    """The mean reward; of a run that imitates, which has none, the loss that takes its place."""
    return _figure(last, "reward", "{:.3f}") or _figure(last, "loss", "loss {:.3f}") or "-"


def _accuracy(last: dict[str, Any]) -> str:
    """The share of completions that are right; of a run that imitates, the share of tokens predicted."""
    return _figure(last, "accuracy", "{:.3f}") or _figure(last, "token_accuracy", "{:.3f} of tokens") or "-"


def _figure(last: dict[str, Any], name: str, form: str) -> str | None:
    value = last.get(name)
    return form.format(value) if isinstance(value, (int, float)) else None


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)
