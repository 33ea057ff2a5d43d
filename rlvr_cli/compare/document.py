"""A comparison as tables, JSON and a data frame: what each arm has is one mapping, and every form is made from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rlvr_cli.compare.results import ArmCurves, ArmOnTask, ArmOverTasks, ArmResult, Comparison, Contrast, TaskComparison
from rlvr_cli.compare.words import (
    VERDICTS,
    chance_text,
    cost_text,
    lines_after,
    lines_before,
    mean_sentence,
    metric_text,
    noun,
    p_text,
    power_lines,
    sentence,
    what_is_compared,
)
from rlvr_cli.core.sparkline import BLOCKS, sparkline
from rlvr_cli.core.table import ResultDocument, Table, flat_cells
from rlvr_cli.core.terminal import Cell
from rlvr_cli.evaluation.tables import Row as Cells
from rlvr_cli.evaluation.tables import clear_difference, metric_name, metric_value_text, with_interval
from rlvr_cli.stats.clustered import CrossedEstimate
from rlvr_cli.stats.over_tasks import Aggregate

if TYPE_CHECKING:
    import pandas as pd

# The task of a row of CSV that is about the mean over all tasks.
MEAN = "mean"
SHAPES = ("best", "area")
COSTS = {"updates": "updates", "tokens": "tokens", "update_seconds": "update time"}
P = "p (Holm)"
WIDTH = 20
# Most columns of the table of profiles.
COLUMNS = 7


def comparison_document(comparison: Comparison, levels: str | None = BLOCKS) -> ResultDocument:
    """Return the whole comparison, to be printed in any form.

    Args:
        levels: the characters of the profiles' curves; None = no curves.
    """
    data = comparison_as_json(comparison)
    if comparison.only is not None:
        tables = task_tables(comparison.only)
    else:
        tables = [means_table(comparison), tasks_table(comparison), profile_table(comparison, levels)]
    shared = {key: value for key, value in data.items() if isinstance(value, str | int | float)}
    shared = (
        shared if comparison.only is not None else {key: data[key] for key in ("metric", "baseline", "comparisons")}
    )
    return ResultDocument(
        tables=tables,
        data=data,
        before=lines_before(comparison),
        after=lines_after(comparison),
        rows=_rows(data),
        shared=shared,
    )


def comparison_frame(comparison: Comparison) -> pd.DataFrame:
    """Return a row for each arm, of several tasks the mean's, then each task's; columns such as `difference.low`."""
    import pandas as pd

    return pd.DataFrame([flat_cells(row) for row in _rows(comparison_as_json(comparison))])


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """Return everything that the tables and sentences tell, with all digits, and where it is from.

    Of several tasks `tasks` has for each what the comparison of one task is.
    """
    if comparison.only is not None:
        return _task(comparison.only)
    scores = comparison.scores
    return {
        "metric": metric_text(comparison),
        "over": list(scores.request.over),
        "one_run_on_all_tasks": scores.together,
        "paired": scores.first.paired,
        "baseline": scores.baseline,
        "comparisons": comparison.family,
        "thresholds": comparison.rows[0].profile.thresholds.tolist(),
        "compared": [line for line in lines_before(comparison) if line],
        "arms": [_over_tasks(comparison, row) for row in comparison.rows],
        "tasks": {name: _task(task) for name, task in comparison.tasks.items()},
        "notes": lines_after(comparison),
    }


def _rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arms of :func:`comparison_as_json` as rows of CSV, without columns that all arms lack."""
    if "tasks" not in data:
        return [_row(arm) for arm in data["arms"]]
    rows = []
    for arm in data["arms"]:
        columns = {key: value for key, value in arm.items() if key not in ("profile", "scores")}
        rows.append({"task": MEAN, **_row(columns)})
    for name, task in data["tasks"].items():
        shared = {key: task[key] for key in ("benchmark", "split", "problems", "samples")}
        rows += [{"task": name, **_row(arm), **shared} for arm in task["arms"]]
    return rows


def _row(arm: Mapping[str, Any]) -> dict[str, Any]:
    row = {key: value for key, value in arm.items() if value is not None}
    return {**row, "runs": [run["run"] for run in row["runs"]]} if "runs" in row else row


def _task(comparison: TaskComparison) -> dict[str, Any]:
    scores, budget = comparison.scores, comparison.scores.request.match
    return {
        "metric": scores.metric,
        "benchmark": scores.settings["benchmark"],
        "split": scores.settings["split"],
        "sampling": scores.settings["sampling"],
        "samples": scores.samples,
        "problems": len(scores.problems),
        "match": None if budget is None else {"budget": budget, "start": scores.start, "end": scores.end},
        "paired": scores.paired,
        "baseline": scores.baseline,
        "compared": what_is_compared(comparison),
        "arms": [_on_task(comparison, row) for row in comparison.rows],
        "power": power_lines(comparison),
        "notes": list(scores.notes),
    }


def _on_task(comparison: TaskComparison, row: ArmOnTask) -> dict[str, Any]:
    runs = comparison.scores.arms[row.arm]
    curves = row.curves
    return {
        "arm": row.arm,
        "method": str(row.runs[0].run.config.method.name),
        "runs": [
            {"run": run.run.path, "seed": replicate.seed, "rest": replicate.rest, "spent": dict(run.spent)}
            for replicate, run in runs.items()
        ],
        "mean": row.mean.as_json(),
        **_contrast(row, "permutation", "outcomes", "needed"),
        "spent": dict(row.spent),
        "cost": dict(row.cost),
        "seconds": {
            part: {"value": row.cost[part], "low": spread[0] if spread else None, "high": spread[1] if spread else None}
            for part, spread in row.seconds.items()
        },
        "curve": None
        if curves is None
        else {
            **{name: estimate.as_json() for name, estimate in curves.values.items()},
            "differences": None
            if curves.differences is None
            else {name: estimate.as_json() for name, estimate in curves.differences.items()},
            "level": curves.level,
            "reached": list(curves.reached),
        },
        "sentence": None if row.contrast is None else sentence(comparison, row),
    }


def _over_tasks(comparison: Comparison, row: ArmOverTasks) -> dict[str, Any]:
    return {
        "arm": row.arm,
        "mean": row.mean.as_json(),
        "interquartile_mean": row.iqm.as_json(),
        **_contrast(row, "outcomes", "probability_of_improvement"),
        "scores": {name: column.tolist() for name, column in zip(comparison.tasks, row.scores.T, strict=True)},
        "profile": {name: getattr(row.profile, name).tolist() for name in ("values", "low", "high")},
        "sentence": None if row.contrast is None else mean_sentence(comparison, row),
    }


def _contrast(row: ArmResult, *names: str) -> dict[str, Any]:
    """Return the fields of an arm's contrast, null of the baseline's."""
    contrast = row.contrast
    if contrast is None:
        return {**dict.fromkeys(("difference", "p_holm", *names)), "verdict": row.verdict}
    fields = {name: value if (value := getattr(contrast, name)) is None else asdict(value) for name in names}
    return {"difference": contrast.difference.as_json(), "p_holm": contrast.p_holm, **fields, "verdict": row.verdict}


def main_table(comparison: TaskComparison) -> Table:
    """An arm a row, the largest effect first; costs are relative to the baseline's."""
    metric = comparison.scores.metric
    header = ["", f"{metric_name(metric)} [95%]", "difference [95%]", P, "won/tied/lost", *COSTS.values()]
    return _tested(Table("", header, [_main_row(metric, row) for row in comparison.rows]), tested=comparison.tested)


def _tested(table: Table, *, tested: bool) -> Table:
    """Return the table, without its column of p if every arm has one run."""
    if tested:
        return table
    at = list(table.header).index(P)
    rows = [[*row[:at], *row[at + 1 :]] for row in table.rows]
    return replace(table, header=[*table.header[:at], *table.header[at + 1 :]], rows=rows)


def _curve_table(comparison: TaskComparison) -> Table:
    """Learning curves up to the common budget: value, then the difference to the baseline; their ends are in the main
    table."""
    metric, budget = comparison.scores.metric, comparison.scores.request.match
    rows = [(row.arm, row.curves) for row in comparison.rows if row.curves is not None]
    level = with_interval(metric, {"value": rows[0][1].level, "low": None})
    header = ["", *(f"{name}, difference [95%]" for name in SHAPES), f"{budget} to reach {level}"]
    return Table("", header, [_curve_row(metric, arm, curves) for arm, curves in rows])


def task_tables(comparison: TaskComparison) -> list[Table]:
    """The tables of one task."""
    return [main_table(comparison), *([_curve_table(comparison)] if comparison.scores.request.match else [])]


def cell(metric: str, estimate: CrossedEstimate | Aggregate, *, signed: bool = False) -> str:
    """A value with its interval."""
    ends: Mapping[str, Any] = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return with_interval(metric, ends, signed=signed)


def _difference(metric: str, contrast: Contrast) -> Cell:
    """The difference with its interval, marked where the verdict is that there is one."""
    text = cell(metric, contrast.difference, signed=True)
    if contrast.verdict not in ("higher", "lower"):
        return text
    return clear_difference(metric, contrast.difference.value, text)


def _main_row(metric: str, row: ArmOnTask) -> Cells:
    cells = [row.arm, cell(metric, row.mean)]
    if row.contrast is None:
        return [*cells, "baseline", "", "", *("1x" for _ in COSTS)]
    won = row.contrast.outcomes
    costs = [cost_text(row, cost) for cost in COSTS]
    difference = _difference(metric, row.contrast)
    return [*cells, difference, p_text(row.contrast.p_holm), f"{won.wins}/{won.ties}/{won.losses}", *costs]


def _curve_row(metric: str, arm: str, curves: ArmCurves) -> Cells:
    cells: Cells = [arm]
    for name in SHAPES:
        value = with_interval(metric, {"value": curves.values[name].value, "low": None})
        difference = curves.differences and f", {cell(metric, curves.differences[name], signed=True)}"
        cells.append(f"{value}{difference or ''}")
    reached = [at for at in curves.reached if at is not None]
    if not reached:
        return [*cells, "never"]
    some = "" if len(reached) == len(curves.reached) else f" ({len(reached)} of {len(curves.reached)} runs)"
    return [*cells, f"{sum(reached) / len(reached):,.6g}{some}"]


def means_table(comparison: Comparison) -> Table:
    """An arm a row, the largest effect first."""
    header = [
        f"over {len(comparison.tasks)} {noun(comparison)}s",
        f"mean {metric_text(comparison)} [95%]",
        "interquartile mean [95%]",
        "difference of the means [95%]",
        P,
        "chance to be above [95%]",
    ]
    rows = [_means_row(comparison.metric, row) for row in comparison.rows]
    return _tested(Table("", header, rows), tested=comparison.tested)


def tasks_table(comparison: Comparison) -> Table:
    """The arms on each task, in the order of the table of means."""
    header = [
        noun(comparison),
        "",
        f"{metric_text(comparison)} [95%]",
        "difference [95%]",
        P,
        "won/tied/lost",
        "difference is",
    ]
    rows = []
    for name, task in comparison.tasks.items():
        metric, row_of = task.scores.metric, {row.arm: row for row in task.rows}
        for line, arm in enumerate(row.arm for row in comparison.rows):
            row = row_of[arm]
            cells: Cells = ["" if line else name, arm, cell(metric, row.mean)]
            if row.contrast is None:
                rows.append([*cells, "baseline", "", "", ""])
                continue
            won = row.contrast.outcomes
            cells += [_difference(metric, row.contrast), p_text(row.contrast.p_holm)]
            rows.append([*cells, f"{won.wins}/{won.ties}/{won.losses}", VERDICTS[row.contrast.verdict]])
    return _tested(Table("", header, rows), tested=comparison.tested)


def profile_table(comparison: Comparison, levels: str | None = BLOCKS) -> Table:
    """The share of runs above each of a few round scores, mean over tasks, and the whole profile as a line."""
    thresholds = comparison.rows[0].profile.thresholds
    columns = round_scores(float(thresholds[0]), float(thresholds[-1]))
    curve = [] if levels is None else [f"{metric_value_text(comparison.metric, thresholds[0])} to {thresholds[-1]:.3g}"]
    header = ["share of runs above", *(f"{score:.6g}" for score in columns), *curve]
    rows = []
    for row in comparison.rows:
        cells = [row.arm, *(f"{(row.scores > score).mean():.2f}" for score in columns)]
        if levels is not None:
            points = [(index, float(value)) for index, value in enumerate(row.profile.values)]
            cells.append(sparkline(points, len(points), WIDTH, levels))
        rows.append(cells)
    return Table("", header, rows)


def round_scores(low: float, high: float) -> list[float]:
    """At most ``COLUMNS`` round numbers between two scores, evenly apart by 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10((high - low) / COLUMNS))
    step = next(
        power * factor
        for factor in (1, 2, 5, 10, 20)
        if math.floor(high / (power * factor)) - math.ceil(low / (power * factor)) < COLUMNS
    )
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(multiple * step, 12) for multiple in range(first, last + 1)]


def _means_row(metric: str, row: ArmOverTasks) -> Cells:
    cells = [row.arm, cell(metric, row.mean), cell(metric, row.iqm)]
    if row.contrast is None:
        return [*cells, "baseline", "", ""]
    contrast = row.contrast
    difference = _difference(metric, contrast)
    chance = "-" if contrast.probability_of_improvement is None else chance_text(contrast.probability_of_improvement)
    return [*cells, difference, p_text(contrast.p_holm), chance]
