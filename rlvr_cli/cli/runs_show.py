"""`rlvr runs show`: one run, with its learning curves in text."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.cli.output import Format, echo, plain_table, print_json, print_table
from rlvr_cli.cli.runs_text import DEFAULT_ROOT, Root, text_of, width
from rlvr_cli.core.errors import RunError

if TYPE_CHECKING:
    from rlvr_cli.results.curves import Curve

WIDEST_CURVE = 60
NARROWEST_CURVE = 16
_ENDS = ("first", "last", "least", "greatest")
_COLUMN = 11
_LISTS = ("last_metrics", "curves", "alerts", "checkpoints", "evaluations")


def show(
    run: Annotated[
        str, typer.Argument(help="A run's name in the folder of runs (`sweep/run` in a sweep), or its path.")
    ],
    root: Root = None,
    form: Format = "table",
) -> None:
    """Show one run: status, progress, learning curves, last metrics, alerts, checkpoints and evaluations."""
    from rlvr_cli.collapse.alerts import PREFIX, Span
    from rlvr_cli.results.curves import learning_curves
    from rlvr_cli.runs.folder import find_run
    from rlvr_cli.runs.listing import summary

    path = find_run(run, root or DEFAULT_ROOT).path
    contents, rows = _contents(path)
    curves = learning_curves(rows)
    details = {**summary(path), **contents}
    if form == "json":
        print_json({**details, "curves": {curve.name: curve.as_json() for curve in curves}})
        return
    table = plain_table("", "")
    table.show_header = False
    for name, value in details.items():
        if name not in _LISTS and value is not None:
            table.add_row(name.replace("_", " "), text_of(value))
    print_table(table)
    if curves:
        from rlvr_cli.core.sparkline import levels_for

        levels = levels_for(getattr(sys.stdout, "encoding", None))
        length = 1 + max(row["rollout"] for row in rows)
        echo("\n".join(["", *curve_lines(curves, length, width(), levels), ""]))
    table = plain_table("", "")
    table.show_header = False
    for name, value in details["last_metrics"].items():
        if isinstance(value, dict):
            for inner, one in value.items():
                table.add_row(f"last {name} {inner}", text_of(one))
        # Alerts have lines of their own, and one that is off is no news.
        elif not name.startswith(PREFIX):
            table.add_row(f"last {name}", text_of(value))
    for alert in details["alerts"]:
        table.add_row("alert", str(Span(**alert)))
    for kind in ("checkpoint", "evaluation"):
        for one in details[f"{kind}s"]:
            table.add_row(kind, one)
    if table.row_count:
        print_table(table)


def curve_lines(curves: list[Curve], length: int, columns: int, levels: str) -> list[str]:
    """The curves over ``length`` rollouts in ``columns`` columns: a line each, or where that is too narrow, three."""
    from rlvr_cli.core.sparkline import sparkline

    title = f"rollouts 1-{length}"
    names = max(len(title), *(len(curve.name) for curve in curves))
    room = columns - names - 2 - len(_ENDS) * _COLUMN
    if room < NARROWEST_CURVE:
        lines = [title]
        for curve in curves:
            drawn = sparkline(curve.points, length, min(WIDEST_CURVE, columns), levels)
            ends = "  ".join(f"{name} {_number(value)}" for name, value in curve.ends().items())
            lines += [curve.name, drawn, *textwrap.wrap(ends, max(columns, 1))] if curve.points else [f"{curve.name} -"]
        return lines
    drawn_width = min(WIDEST_CURVE, room, length)
    lines = [f"{title:<{names}}  {'':<{drawn_width}}" + "".join(f"{end:>{_COLUMN}}" for end in _ENDS)]
    for curve in curves:
        drawn = sparkline(curve.points, length, drawn_width, levels)
        ends = "".join(f"{_number(value):>{_COLUMN}}" for value in curve.ends().values())
        lines.append(f"{curve.name:<{names}}  {drawn}{ends}")
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _contents(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What lies in the run's folder beside its manifest, and the lines of its metrics.jsonl."""
    from rlvr_cli.collapse.alerts import alert_spans
    from rlvr_cli.core.files import read_jsonl
    from rlvr_cli.launch.slurm import job_of
    from rlvr_cli.results.curves import whole_rows
    from rlvr_cli.runs.checkpoints import Checkpoint, survey
    from rlvr_cli.runs.folder import RunDir
    from rlvr_cli.runs.records import damaged_records, read_seal

    run = RunDir(path)
    found = survey(run.checkpoints_dir)
    faults: list[str] = []
    lines: list[dict[str, Any]] = []
    try:
        lines = read_jsonl(run.metrics_path)
        faults += damaged_records(run, read_seal(run) or {})
    except RunError as error:
        faults.append(str(error))
    rows = whole_rows(lines)
    if len(rows) < len(lines):
        faults.append(f"{run.metrics_path}: {len(lines) - len(rows)} of its lines are no optimizer step's.")
    job = job_of(path)
    contents = {
        **({"damage": "; ".join(faults)} if faults else {}),
        **({"slurm_job": job} if job else {}),
        "alerts": [span.as_json() for span in alert_spans(rows)],
        "checkpoints": [
            str(item.path) if isinstance(item, Checkpoint) else f"{item.path} (damaged: {item.reason})"
            for item in found
        ],
        "evaluations": sorted(str(metrics.parent) for metrics in run.eval_dir.glob("**/metrics.json")),
    }
    return contents, rows
