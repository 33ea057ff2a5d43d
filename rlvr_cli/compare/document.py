"""A comparison as tables, JSON and a data frame, all made from one mapping per arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlvr_cli.compare.results import ArmCurve, ArmOnTask, ArmOverTasks, ArmResult, Comparison, TaskComparison
from rlvr_cli.compare.words import (
    VERDICTS,
    describe_comparison,
    format_cost,
    format_p,
    lines_after,
    lines_before,
    mean_sentence,
    metric_text,
    noun,
    power_lines,
    sentence,
)
from rlvr_cli.core.table import ResultDocument, Table, flatten_row
from rlvr_cli.evaluation.tables import Row as Cells
from rlvr_cli.evaluation.tables import format_metric, mark_difference, metric_name, with_interval

if TYPE_CHECKING:
    import pandas as pd

# The task of a row of CSV that is about the mean over all tasks.
MEAN = "mean"
COSTS = {"updates": "updates", "tokens": "tokens", "update_seconds": "update time"}
P = "p (Holm)"


def comparison_document(comparison: Comparison) -> ResultDocument:
    """Return the whole comparison, to be printed in any form."""
    data = comparison_as_json(comparison)
    only = comparison.only
    keys = ("metric", "baseline", "comparisons") if only is None else tuple(data)
    return ResultDocument(
        tables=[tasks_table(comparison)] if only is None else task_tables(only),
        data=data,
        before=lines_before(comparison),
        after=lines_after(comparison),
        rows=_rows(data),
        shared={key: data[key] for key in keys if isinstance(data[key], str | int | float)},
    )


def comparison_frame(comparison: Comparison) -> pd.DataFrame:
    """Return a row for each arm, of several tasks the mean's, then each task's; columns such as `difference.low`."""
    import pandas as pd

    return pd.DataFrame([flatten_row(row) for row in _rows(comparison_as_json(comparison))])


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """Return everything that the tables and sentences state, with all digits, and its source.

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
        "compared": [line for line in lines_before(comparison) if line],
        "arms": [_over_tasks(comparison, row) for row in comparison.rows],
        "tasks": {name: _task(task) for name, task in comparison.tasks.items()},
        "notes": lines_after(comparison),
    }


def _rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the arms of :func:`comparison_as_json` as rows of CSV, without columns that all arms lack."""
    if "tasks" not in data:
        return [_row(arm) for arm in data["arms"]]
    rows = [{"task": MEAN, **_row(arm)} for arm in data["arms"]]
    for name, task in data["tasks"].items():
        shared = {key: task[key] for key in ("benchmark", "split", "problems", "samples")}
        rows += [{"task": name, **_row(arm), **shared} for arm in task["arms"]]
    return rows


def _row(arm: Mapping[str, Any]) -> dict[str, Any]:
    row = _present({key: value for key, value in arm.items() if key != "scores"})
    return {**row, "runs": [run["run"] for run in row["runs"]]} if "runs" in row else row


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None, on every level."""
    items = ((key, _present(value) if isinstance(value, Mapping) else value) for key, value in values.items())
    return {key: value for key, value in items if value is not None}


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
        "compared": describe_comparison(comparison),
        "arms": [_on_task(comparison, row) for row in comparison.rows],
        "power": power_lines(comparison),
        "notes": list(scores.notes),
    }


def _on_task(comparison: TaskComparison, row: ArmOnTask) -> dict[str, Any]:
    runs, curve = comparison.scores.arms[row.arm], row.curve
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
            cost: {"value": row.cost[cost], "low": span[0] if span else None, "high": span[1] if span else None}
            for cost, span in row.seconds.items()
        },
        "curve": None
        if curve is None
        else {
            "area": curve.area.as_json(),
            "difference": curve.difference and curve.difference.as_json(),
            "level": curve.level,
            "reached": list(curve.reached),
        },
        "sentence": None if row.contrast is None else sentence(comparison, row),
    }


def _over_tasks(comparison: Comparison, row: ArmOverTasks) -> dict[str, Any]:
    return {
        "arm": row.arm,
        "mean": row.mean.as_json(),
        **_contrast(row, "outcomes"),
        "scores": {name: column.tolist() for name, column in zip(comparison.tasks, row.scores.T, strict=True)},
        "sentence": None if row.contrast is None else mean_sentence(comparison, row),
    }


def _contrast(row: ArmResult, *names: str) -> dict[str, Any]:
    """Return the fields of an arm's contrast, null of the baseline's."""
    contrast = row.contrast
    if contrast is None:
        return {**dict.fromkeys(("difference", "p_holm", *names)), "verdict": row.verdict}
    fields = {name: value if (value := getattr(contrast, name)) is None else asdict(value) for name in names}
    return {"difference": contrast.difference.as_json(), "p_holm": contrast.p_holm, **fields, "verdict": row.verdict}


def task_tables(comparison: TaskComparison) -> list[Table]:
    """Return the arms of one task, the largest effect first, and of a matched comparison their learning curves.

    Costs are relative to the baseline's.
    """
    metric = comparison.scores.metric
    header = ["", f"{metric_name(metric)} [95%]", "difference [95%]", P, "won/tied/lost", *COSTS.values()]
    rows = []
    for row in comparison.rows:
        costs = ["1x" if row.contrast is None else format_cost(row, cost) for cost in COSTS]
        rows.append([*_cells(metric, row), *costs])
    table = _tested(header, rows, tested=comparison.tested)
    curves = [(row.arm, row.curve) for row in comparison.rows if row.curve is not None]
    return [table, _curve_table(comparison, curves)] if curves else [table]


def tasks_table(comparison: Comparison) -> Table:
    """Return the arms on the mean over tasks, the largest effect first, and in the same order on each task."""
    name = noun(comparison)
    header = [name, "", f"{metric_text(comparison)} [95%]", "difference [95%]", P, "won/tied/lost", "difference is"]
    order = [row.arm for row in comparison.rows]
    groups: dict[str, tuple[str, Sequence[ArmResult]]] = {
        f"mean of {len(comparison.tasks)}": (comparison.metric, comparison.rows)
    }
    for task, compared in comparison.tasks.items():
        groups[task] = (compared.scores.metric, sorted(compared.rows, key=lambda row: order.index(row.arm)))
    rows: list[Cells] = []
    for group, (metric, arms) in groups.items():
        for line, row in enumerate(arms):
            verdict = "" if row.contrast is None else VERDICTS[row.contrast.verdict]
            rows.append(["" if line else group, *_cells(metric, row), verdict])
    return _tested(header, rows, tested=comparison.tested)


def _cells(metric: str, row: ArmResult) -> Cells:
    """Return an arm's name, mean, difference, p, and wins, ties and losses; a clear difference is marked."""
    cells: Cells = [row.arm, with_interval(metric, row.mean)]
    contrast = row.contrast
    if contrast is None:
        return [*cells, "baseline", "", ""]
    text = with_interval(metric, contrast.difference, signed=True)
    clear = contrast.verdict in ("higher", "lower")
    counts = contrast.outcomes
    return [
        *cells,
        mark_difference(metric, contrast.difference.value, text) if clear else text,
        format_p(contrast.p_holm),
        f"{counts.wins}/{counts.ties}/{counts.losses}",
    ]


def _tested(header: Sequence[str], rows: Sequence[Cells], *, tested: bool) -> Table:
    """Return a table, without its column of p if every arm has one run."""
    columns = [at for at, name in enumerate(header) if tested or name != P]
    return Table("", [header[at] for at in columns], [[row[at] for at in columns] for row in rows])


def _curve_table(comparison: TaskComparison, curves: Sequence[tuple[str, ArmCurve]]) -> Table:
    """Return the mean height of learning curves up to the common budget, and when they reach a level."""
    metric, budget = comparison.scores.metric, comparison.scores.request.match
    header = ["", "area, difference [95%]", f"{budget} to reach {format_metric(metric, curves[0][1].level)}"]
    rows: list[Cells] = []
    for arm, curve in curves:
        area = format_metric(metric, curve.area.value)
        change = f", {with_interval(metric, curve.difference, signed=True)}" if curve.difference else ""
        reached = [at for at in curve.reached if at is not None]
        some = "" if len(reached) == len(curve.reached) else f" ({len(reached)} of {len(curve.reached)} runs)"
        when = f"{sum(reached) / len(reached):,.6g}{some}" if reached else "never"
        rows.append([arm, f"{area}{change}", when])
    return Table("", header, rows)
