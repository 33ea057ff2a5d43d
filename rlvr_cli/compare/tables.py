"""A comparison as tables: for a terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr_cli.compare.contrasts import Comparison, Row
from rlvr_cli.compare.curves import CurveRow
from rlvr_cli.compare.sentences import base_cost, cost_text, headline, p_text, power_lines, sentences
from rlvr_cli.evaluation.tables import Row as Cells
from rlvr_cli.evaluation.tables import metric_name, with_interval
from rlvr_cli.stats.clustered import CrossedEstimate
from rlvr_cli.stats.over_tasks import Aggregate

SHAPES = ("best", "area")
Table = tuple[Cells, list[Cells]]
COSTS = {"updates": "updates", "tokens": "tokens", "update_seconds": "update time"}
_LATEX = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def main_table(comparison: Comparison) -> Table:
    """An arm a row, the largest effect first; costs are relative to the baseline's."""
    metric = comparison.material.read.metric
    header = ["", f"{metric_name(metric)} [95%]", "difference [95%]", "p (Holm)", "won/tied/lost", *COSTS.values()]
    return header, [_main_row(metric, row) for row in comparison.rows]


def curve_table(comparison: Comparison) -> Table:
    """Learning curves up to the common budget: value, then the difference to the baseline; their ends are in the main
    table."""
    metric, budget = comparison.material.read.metric, comparison.material.question.match
    level = with_interval(metric, {"value": comparison.curves[0].level, "low": None})
    header = ["", *(f"{name}, difference [95%]" for name in SHAPES), f"{budget} to reach {level}"]
    return header, [_curve_row(metric, row) for row in comparison.curves]


def lines_before(comparison: Comparison) -> list[str]:
    """What stands above the tables."""
    return headline(comparison)


def lines_after(comparison: Comparison) -> list[str]:
    """What stands below them: sentences, power, costs, notes."""
    family = comparison.family
    tests = [f"p: two-sided, Holm's correction over {family} comparisons"] if family > 1 else []
    notes = [f"note: {note}" for note in comparison.material.notes]
    return [*sentences(comparison), *power_lines(comparison), base_cost(comparison), *tests, *notes]


def markdown(comparison: Comparison) -> str:
    """The whole comparison as Markdown."""
    parts = ["\n".join(f"- {line}" for line in lines_before(comparison))]
    parts += [markdown_table(table) for table in tables(comparison)]
    parts.append("\n".join(f"- {line}" for line in lines_after(comparison)))
    return "\n\n".join(parts)


def latex(comparison: Comparison) -> str:
    """The tables as LaTeX (package booktabs); the words around them are comments."""
    parts = [comments(lines_before(comparison))]
    parts += [latex_table(table) for table in tables(comparison)]
    parts.append(comments(lines_after(comparison)))
    return "\n".join(parts)


def tables(comparison: Comparison) -> list[Table]:
    """All tables of a comparison."""
    return [main_table(comparison), *([curve_table(comparison)] if comparison.curves else [])]


def latex_text(text: str) -> str:
    """Text with every character that means something to LaTeX escaped."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


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


def markdown_table(table: Table) -> str:
    """A table in Markdown."""
    header, rows = table
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def latex_table(table: Table) -> str:
    """A `tabular` with the rules of booktabs."""
    header, rows = table

    def line(cells: Sequence[str]) -> str:
        return f"{' & '.join(latex_text(cell) for cell in cells)} \\\\"

    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            line(header),
            r"\midrule",
            *(line(row) for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def comments(lines: Sequence[str]) -> str:
    """Lines as comments of LaTeX."""
    return "\n".join(f"% {line}" for line in lines)
