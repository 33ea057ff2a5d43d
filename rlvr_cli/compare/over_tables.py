"""A comparison over several tasks as tables: for a terminal, Markdown and LaTeX."""

from __future__ import annotations

import math

from rlvr_cli.compare.over_contrasts import TasksComparison, TasksRow
from rlvr_cli.compare.over_data import as_json, csv_rows
from rlvr_cli.compare.over_sentences import VERDICTS, chance_text, lines_after, lines_before, metric_text, noun
from rlvr_cli.compare.sentences import p_text
from rlvr_cli.compare.tables import cell
from rlvr_cli.core.sparkline import BLOCKS, sparkline
from rlvr_cli.core.table import Document, Table
from rlvr_cli.evaluation.tables import Row as Cells
from rlvr_cli.evaluation.tables import figure

WIDTH = 20
# Most columns of the table of profiles.
COLUMNS = 7


def tables(comparison: TasksComparison, levels: str | None = BLOCKS) -> list[Table]:
    """The mean over tasks, each task, and profiles; ``levels``: the characters of their curves, None = no curves."""
    return [means_table(comparison), tasks_table(comparison), profile_table(comparison, levels)]


def means_table(comparison: TasksComparison) -> Table:
    """An arm a row, the largest effect first."""
    header = [
        f"over {len(comparison.tasks)} {noun(comparison)}s",
        f"mean {metric_text(comparison)} [95%]",
        "interquartile mean [95%]",
        "difference of the means [95%]",
        "p (Holm)",
        "chance to be above [95%]",
    ]
    return Table("", header, [_means_row(comparison.metric, row) for row in comparison.rows])


def tasks_table(comparison: TasksComparison) -> Table:
    """The arms on each task, in the order of the table of means."""
    header = [
        noun(comparison),
        "",
        f"{metric_text(comparison)} [95%]",
        "difference [95%]",
        "p (Holm)",
        "won/tied/lost",
        "difference is",
    ]
    rows = []
    for name, one in comparison.tasks.items():
        metric, found = one.material.read.metric, {row.arm: row for row in one.rows}
        for place, arm in enumerate(row.arm for row in comparison.rows):
            row = found[arm]
            cells = ["" if place else name, arm, cell(metric, row.mean)]
            if row.contrast is None:
                rows.append([*cells, "baseline", "", "", ""])
                continue
            won = row.contrast.outcomes
            cells += [cell(metric, row.contrast.difference, signed=True), p_text(row.contrast.p_value)]
            rows.append([*cells, f"{won.wins}/{won.ties}/{won.losses}", VERDICTS[row.contrast.verdict]])
    return Table("", header, rows)


def profile_table(comparison: TasksComparison, levels: str | None = BLOCKS) -> Table:
    """The share of runs above each of a few round scores, mean over tasks, and the whole profile as a line."""
    thresholds = comparison.rows[0].profile.thresholds
    shown = round_scores(float(thresholds[0]), float(thresholds[-1]))
    curve = [] if levels is None else [f"{figure(comparison.metric, thresholds[0])} to {thresholds[-1]:.3g}"]
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


def document(comparison: TasksComparison, levels: str | None = BLOCKS) -> Document:
    """The whole comparison, to be printed in any form; ``levels``: as of :func:`tables`."""
    data = as_json(comparison)
    return Document(
        tables=tables(comparison, levels),
        data=data,
        before=lines_before(comparison),
        after=lines_after(comparison),
        rows=csv_rows(data),
        shared={key: data[key] for key in ("metric", "baseline", "comparisons")},
    )


def _means_row(metric: str, row: TasksRow) -> Cells:
    cells = [row.arm, cell(metric, row.mean), cell(metric, row.middle)]
    if row.contrast is None:
        return [*cells, "baseline", "", ""]
    contrast = row.contrast
    difference = cell(metric, contrast.difference, signed=True)
    return [*cells, difference, p_text(contrast.p_value), chance_text(contrast.improvement)]
