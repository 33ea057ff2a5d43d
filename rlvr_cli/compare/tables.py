"""A comparison as tables, and as a document that is printed in any form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlvr_cli.compare.contrasts import ArmMean, ArmResult, Comparison, Contrast, MeanContrast, TaskComparison
from rlvr_cli.compare.curves import CurveRow
from rlvr_cli.compare.data import comparison_as_json, csv_rows, csv_shared
from rlvr_cli.compare.sentences import lines_after, lines_before, metric_text, noun
from rlvr_cli.compare.wording import VERDICTS, chance_text, cost_text, p_text
from rlvr_cli.core.sparkline import BLOCKS, sparkline
from rlvr_cli.core.table import ResultDocument, Table
from rlvr_cli.core.terminal import Cell
from rlvr_cli.evaluation.tables import Row as Cells
from rlvr_cli.evaluation.tables import clear_difference, metric_name, metric_value_text, with_interval
from rlvr_cli.stats.clustered import CrossedEstimate
from rlvr_cli.stats.over_tasks import Aggregate

SHAPES = ("best", "area")
COSTS = {"updates": "updates", "tokens": "tokens", "update_seconds": "update time"}
P = "p (Holm)"
WIDTH = 20
# Most columns of the table of profiles.
COLUMNS = 7


def comparison_document(comparison: Comparison, levels: str | None = BLOCKS) -> ResultDocument:
    """The whole comparison, to be printed in any form; ``levels``: as of :func:`_tables`."""
    data = comparison_as_json(comparison)
    return ResultDocument(
        tables=_tables(comparison, levels),
        data=data,
        before=lines_before(comparison),
        after=lines_after(comparison),
        rows=csv_rows(data),
        shared=csv_shared(data),
    )


def _tables(comparison: Comparison, levels: str | None = BLOCKS) -> list[Table]:
    """Those of the one task; else the mean over tasks, each task, and profiles.

    Args:
        levels: the characters of the profiles' curves; None = no curves.
    """
    if comparison.only is not None:
        return task_tables(comparison.only)
    return [means_table(comparison), tasks_table(comparison), profile_table(comparison, levels)]


def main_table(comparison: TaskComparison) -> Table:
    """An arm a row, the largest effect first; costs are relative to the baseline's."""
    metric = comparison.inputs.by_run.metric
    header = ["", f"{metric_name(metric)} [95%]", "difference [95%]", P, "won/tied/lost", *COSTS.values()]
    return _tested(Table("", header, [_main_row(metric, row) for row in comparison.rows]), tested=comparison.tested)


def _tested(table: Table, *, tested: bool) -> Table:
    """The table; without its column of p where there is none, with one run an arm."""
    if tested:
        return table
    at = list(table.header).index(P)
    rows = [[*row[:at], *row[at + 1 :]] for row in table.rows]
    return replace(table, header=[*table.header[:at], *table.header[at + 1 :]], rows=rows)


def _curve_table(comparison: TaskComparison) -> Table:
    """Learning curves up to the common budget: value, then the difference to the baseline; their ends are in the main
    table."""
    metric, budget = comparison.inputs.by_run.metric, comparison.inputs.request.match
    level = with_interval(metric, {"value": comparison.curves[0].level, "low": None})
    header = ["", *(f"{name}, difference [95%]" for name in SHAPES), f"{budget} to reach {level}"]
    return Table("", header, [_curve_row(metric, row) for row in comparison.curves])


def task_tables(comparison: TaskComparison) -> list[Table]:
    """The tables of one task."""
    return [main_table(comparison), *([_curve_table(comparison)] if comparison.curves else [])]


def cell(metric: str, estimate: CrossedEstimate | Aggregate, *, signed: bool = False) -> str:
    """A value with its interval."""
    ends: Mapping[str, Any] = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return with_interval(metric, ends, signed=signed)


def _difference(metric: str, contrast: Contrast | MeanContrast) -> Cell:
    """The difference with its interval, marked where the verdict is that there is one."""
    text = cell(metric, contrast.difference, signed=True)
    if contrast.verdict not in ("higher", "lower"):
        return text
    return clear_difference(metric, contrast.difference.value, text)


def _main_row(metric: str, row: ArmResult) -> Cells:
    cells = [row.arm, cell(metric, row.mean)]
    if row.contrast is None:
        return [*cells, "baseline", "", "", *("1x" for _ in COSTS)]
    found = row.contrast.outcomes
    costs = [cost_text(row, part) for part in COSTS]
    difference = _difference(metric, row.contrast)
    return [*cells, difference, p_text(row.contrast.p_value), f"{found.wins}/{found.ties}/{found.losses}", *costs]


def _curve_row(metric: str, row: CurveRow) -> Cells:
    cells = []
    for name in SHAPES:
        value = with_interval(metric, {"value": row.values[name].value, "low": None})
        difference = "" if row.differences is None else f", {cell(metric, row.differences[name], signed=True)}"
        cells.append(f"{value}{difference}")
    reached = [at for at in row.reached if at is not None]
    if not reached:
        return [row.arm, *cells, "never"]
    mean = f"{sum(reached) / len(reached):,.6g}"
    return [
        row.arm,
        *cells,
        mean if len(reached) == len(row.reached) else f"{mean} ({len(reached)} of {len(row.reached)} runs)",
    ]


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
    for name, one in comparison.tasks.items():
        metric, found = one.inputs.by_run.metric, {row.arm: row for row in one.rows}
        for place, arm in enumerate(row.arm for row in comparison.rows):
            row = found[arm]
            cells: Cells = ["" if place else name, arm, cell(metric, row.mean)]
            if row.contrast is None:
                rows.append([*cells, "baseline", "", "", ""])
                continue
            won = row.contrast.outcomes
            cells += [_difference(metric, row.contrast), p_text(row.contrast.p_value)]
            rows.append([*cells, f"{won.wins}/{won.ties}/{won.losses}", VERDICTS[row.contrast.verdict]])
    return _tested(Table("", header, rows), tested=comparison.tested)


def profile_table(comparison: Comparison, levels: str | None = BLOCKS) -> Table:
    """The share of runs above each of a few round scores, mean over tasks, and the whole profile as a line."""
    thresholds = comparison.rows[0].profile.thresholds
    shown = round_scores(float(thresholds[0]), float(thresholds[-1]))
    curve = [] if levels is None else [f"{metric_value_text(comparison.metric, thresholds[0])} to {thresholds[-1]:.3g}"]
    header = ["share of runs above", *(f"{score:.6g}" for score in shown), *curve]
    rows = []
    for row in comparison.rows:
        cells = [row.arm, *(f"{(row.scores > score).mean():.2f}" for score in shown)]
        if levels is not None:
            points = [(place, float(value)) for place, value in enumerate(row.profile.values)]
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
    return [round(place * step, 12) for place in range(first, last + 1)]


def _means_row(metric: str, row: ArmMean) -> Cells:
    cells = [row.arm, cell(metric, row.mean), cell(metric, row.middle)]
    if row.contrast is None:
        return [*cells, "baseline", "", ""]
    contrast = row.contrast
    difference = _difference(metric, contrast)
    chance = "-" if contrast.improvement is None else chance_text(contrast.improvement)
    return [*cells, difference, p_text(contrast.p_value), chance]
