"""Format a comparison as tables, JSON and a data frame, from one mapping per arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlvr_cli.compare.results import ArmCurve, ArmOnTask, ArmOverTasks, ArmResult, Comparison, Contrast, TaskComparison
from rlvr_cli.compare.words import (
    VERDICTS,
    control_sentence,
    describe_comparison,
    format_cost,
    format_p,
    lines_after,
    lines_before,
    mean_sentence,
    metric_text,
    power_lines,
    sentence,
    task_noun,
)
from rlvr_cli.core.table import ResultDocument, Table, flatten_row
from rlvr_cli.evaluation.tables import Row as Cells
from rlvr_cli.evaluation.tables import format_metric, mark_difference, metric_name, with_interval

if TYPE_CHECKING:
    import pandas as pd

# In CSV, the task of rows of the mean over tasks.
MEAN = "mean"
COSTS = {"updates": "updates", "tokens": "tokens", "update_seconds": "update time"}
P = "p (Holm)"


def comparison_document(comparison: Comparison) -> ResultDocument:
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
    """Return one row per arm (with several tasks, of the mean, then of each task); columns such as `difference.low`."""
    import pandas as pd

    return pd.DataFrame([flatten_row(row) for row in _rows(comparison_as_json(comparison))])


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the results at full precision, with their sources; of several tasks, `tasks` has a comparison each."""
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
    """Return the arms of :func:`comparison_as_json` as rows of CSV, without empty columns."""
    if "tasks" not in data:
        return [_row(arm) for arm in data["arms"]]
    rows = [{"task": MEAN, **_row(arm)} for arm in data["arms"]]
    for name, task in data["tasks"].items():
        shared = {key: task[key] for key in ("benchmark", "split", "problems", "samples")}
        rows += [{"task": name, **_row(arm), **shared} for arm in task["arms"]]
    return rows


def _row(arm: Mapping[str, Any]) -> dict[str, Any]:
    row = _drop_none({key: value for key, value in arm.items() if key != "scores"})
    return {**row, "runs": [run["run"] for run in row["runs"]]} if "runs" in row else row


def _drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    items = ((key, _drop_none(value) if isinstance(value, Mapping) else value) for key, value in values.items())
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
        **_above(comparison, comparison.scores.metric, row),
    }


def _over_tasks(comparison: Comparison, row: ArmOverTasks) -> dict[str, Any]:
    return {
        "arm": row.arm,
        "mean": row.mean.as_json(),
        **_contrast(row, "outcomes"),
        "scores": {name: column.tolist() for name, column in zip(comparison.tasks, row.scores.T, strict=True)},
        "sentence": None if row.contrast is None else mean_sentence(comparison, row),
        **_above(comparison.first, comparison.metric, row, " on the mean"),
    }


def _contrast(row: ArmResult, *names: str) -> dict[str, Any]:
    """Return the fields of an arm's contrast, null for the baseline."""
    contrast = row.contrast
    if contrast is None:
        return {**dict.fromkeys(("difference", "p_holm", *names)), "verdict": row.verdict}
    fields = {name: value if (value := getattr(contrast, name)) is None else asdict(value) for name in names}
    return {**_difference(contrast), **fields, "verdict": row.verdict}


def _difference(contrast: Contrast) -> dict[str, Any]:
    return {"difference": contrast.difference.as_json(), "p_holm": contrast.p_holm}


def _above(task: TaskComparison, metric: str, row: ArmResult, where: str = "") -> dict[str, Any]:
    """Return the contrast of an arm with the best of its controls, if it has any."""
    if row.above is None:
        return {}
    text = control_sentence(task, metric, row, where)
    return {
        "control": {"arm": row.above.base, **_difference(row.above), "verdict": row.above.verdict, "sentence": text}
    }


def task_tables(comparison: TaskComparison) -> list[Table]:
    """Return the table of the arms on a task, the largest effect first, and one of learning curves if matched.

    Costs are relative to the baseline.
    """
    metric = comparison.scores.metric
    header = ["", f"{metric_name(metric)} [95%]", "difference [95%]", P, "won/tied/lost", *COSTS.values()]
    rows = []
    for row in comparison.rows:
        costs = ["1x" if row.contrast is None else format_cost(row, cost) for cost in COSTS]
        rows.append([*_cells(metric, row), *costs])
    if any(row.above for row in comparison.rows):
        header.append("above its control [95%]")
        for cells, row in zip(rows, comparison.rows, strict=True):
            cells.append(with_interval(metric, row.above.difference, signed=True) if row.above else "")
    table = _result_table(header, rows, tested=comparison.tested)
    curves = [(row.arm, row.curve) for row in comparison.rows if row.curve is not None]
    return [table, _curve_table(comparison, curves)] if curves else [table]


def tasks_table(comparison: Comparison) -> Table:
    """Return the table of the arms on the mean over tasks, the largest effect first, and then on each task."""
    name = task_noun(comparison)
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
    return _result_table(header, rows, tested=comparison.tested)


def _cells(metric: str, row: ArmResult) -> Cells:
    """Return an arm's name, mean, difference, p, and wins, ties and losses; clear differences are marked."""
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


def _result_table(header: Sequence[str], rows: Sequence[Cells], *, tested: bool) -> Table:
    """Return a table, without the column of p-values unless ``tested``."""
    columns = [index for index, name in enumerate(header) if tested or name != P]
    return Table("", [header[index] for index in columns], [[row[index] for index in columns] for row in rows])


def _curve_table(comparison: TaskComparison, curves: Sequence[tuple[str, ArmCurve]]) -> Table:
    """Return the table of the mean heights of learning curves, and the budgets at which they reach a level."""
    metric, budget = comparison.scores.metric, comparison.scores.request.match
    header = ["", "area, difference [95%]", f"{budget} to reach {format_metric(metric, curves[0][1].level)}"]
    rows: list[Cells] = []
    for arm, curve in curves:
        area = format_metric(metric, curve.area.value)
        change = f", {with_interval(metric, curve.difference, signed=True)}" if curve.difference else ""
        reached = [budget for budget in curve.reached if budget is not None]
        share = "" if len(reached) == len(curve.reached) else f" ({len(reached)} of {len(curve.reached)} runs)"
        when = f"{sum(reached) / len(reached):,.6g}{share}" if reached else "never"
        rows.append([arm, f"{area}{change}", when])
    return Table("", header, rows)
