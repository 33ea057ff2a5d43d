"""A comparison as tables: for a terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr_cli.compare.contrasts import Comparison, Row
from rlvr_cli.compare.curves import CurveRow
from rlvr_cli.compare.data import as_json, csv_row
from rlvr_cli.compare.sentences import base_cost, cost_text, headline, p_text, power_lines, sentences
from rlvr_cli.core.table import Document, Table
from rlvr_cli.evaluation.tables import Row as Cells
from rlvr_cli.evaluation.tables import metric_name, with_interval
from rlvr_cli.stats.clustered import CrossedEstimate
from rlvr_cli.stats.over_tasks import Aggregate

SHAPES = ("best", "area")
COSTS = {"updates": "updates", "tokens": "tokens", "update_seconds": "update time"}


def main_table(comparison: Comparison) -> Table:
    """An arm a row, the largest effect first; costs are relative to the baseline's."""
    metric = comparison.material.read.metric
    header = ["", f"{metric_name(metric)} [95%]", "difference [95%]", "p (Holm)", "won/tied/lost", *COSTS.values()]
    return Table("", header, [_main_row(metric, row) for row in comparison.rows])


def curve_table(comparison: Comparison) -> Table:
    """Learning curves up to the common budget: value, then the difference to the baseline; their ends are in the main
    table."""
    metric, budget = comparison.material.read.metric, comparison.material.question.match
    level = with_interval(metric, {"value": comparison.curves[0].level, "low": None})
    header = ["", *(f"{name}, difference [95%]" for name in SHAPES), f"{budget} to reach {level}"]
    return Table("", header, [_curve_row(metric, row) for row in comparison.curves])


def lines_before(comparison: Comparison) -> list[str]:
    """What stands above the tables."""
    return headline(comparison)


def lines_after(comparison: Comparison) -> list[str]:
    """What stands below them: sentences, power, costs, notes."""
    family = comparison.family
    tests = [f"p: two-sided, Holm's correction over {family} comparisons"] if family > 1 else []
    notes = [f"note: {note}" for note in comparison.material.notes]
    return [*sentences(comparison), *power_lines(comparison), base_cost(comparison), *tests, *notes]


def document(comparison: Comparison) -> Document:
    """The whole comparison, to be printed in any form."""
    data = as_json(comparison)
    return Document(
        tables=tables(comparison),
        data=data,
        before=lines_before(comparison),
        after=lines_after(comparison),
        rows=[csv_row(arm) for arm in data["arms"]],
        shared={key: value for key, value in data.items() if isinstance(value, str | int | float)},
    )


def tables(comparison: Comparison) -> list[Table]:
    """All tables of a comparison."""
    return [main_table(comparison), *([curve_table(comparison)] if comparison.curves else [])]


def cell(metric: str, estimate: CrossedEstimate | Aggregate, *, signed: bool = False) -> str:
    """A value with its interval."""
    ends: Mapping[str, Any] = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return with_interval(metric, ends, signed=signed)


def _main_row(metric: str, row: Row) -> Cells:
    cells = [row.arm, cell(metric, row.mean)]
    if row.contrast is None:
        return [*cells, "baseline", "", "", *("1x" for _ in COSTS)]
    found = row.contrast.outcomes
    costs = [cost_text(row, part) for part in COSTS]
    difference = cell(metric, row.contrast.difference, signed=True)
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
