"""Forest plot of a comparison: differences to the baseline with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlvr_cli.compare.results import ArmOnTask, Contrast, TaskComparison
from rlvr_cli.compare.words import VERDICTS, format_p
from rlvr_cli.core.text import count, shorten, to_one_line, unique_labels
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.report.charts.chart import MOST_IN_ROW, Chart, DrawnPanel, Row, draw_rows
from rlvr_cli.store.metrics import metric as declared

Rows = Sequence[tuple[ArmOnTask, Contrast]]


def effects_figure(comparison: TaskComparison, indices: Mapping[str, int]) -> Chart:
    """Return a row per arm except the baseline, by descending difference; ``indices``: of the page's arms, by name."""
    scores = comparison.scores
    metric, base = scores.metric, to_one_line(scores.baseline)
    of = metric_name(metric).strip()
    title = f"Difference from {base}: {of}"
    rows = comparison.others
    verb = "paired by problem and seed" if scores.paired else "paired by problem, not by seed"
    caption = [f"{of} of each arm minus {base}, {verb}. Line: 95% interval over runs and problems, uncorrected."]
    if comparison.tested:
        caption.append(f"Filled: p < 0.05, Holm-adjusted over {count(len(rows), 'comparison')}; hollow: p >= 0.05.")
    if any(not contrast.difference.spread_of_runs for _, contrast in rows):
        caption.append("One run per arm: the interval is over problems alone; a single run cannot rank methods.")
    if without := [to_one_line(row.arm) for row, contrast in rows if contrast.difference.low is None]:
        caption.append(f"No interval: {', '.join(without)}.")
    table = _make_table(rows, metric, tested=comparison.tested)
    return Chart("effects", title, (_draw(title, rows, indices, metric, base),), (" ".join(caption),), table)


def _draw(title: str, rows: Rows, indices: Mapping[str, int], metric: str, base: str) -> DrawnPanel:
    unit, better = declared(metric).unit, declared(metric).higher_is_better
    names = unique_labels([to_one_line(row.arm) for row, _ in rows], MOST_IN_ROW)
    drawn = []
    for (row, contrast), name in zip(rows, names.values(), strict=True):
        value, low, high = _scale(contrast, metric)
        filled = contrast.verdict in ("higher", "lower")
        drawn.append(Row(indices.get(row.arm), name, _format_difference(contrast, metric), value, filled, low, high))
    ends = [0.0, *(end for row in drawn for end in (row.value, row.low, row.high) if end is not None)]
    margin = 0.06 * ((max(ends) - min(ends)) or 1.0)
    notes = {True: ("← worse", "better →"), False: ("← better", "worse →"), None: ("← lower", "higher →")}[better]
    domain = (min(ends) - margin, max(ends) + margin)
    return draw_rows(title, drawn, domain, f"{unit}, minus {shorten(base, 28)}", notes)


def _scale(contrast: Contrast, metric: str) -> tuple[float, float | None, float | None]:
    factor, difference = declared(metric).factor, contrast.difference
    low, high = (None if end is None else factor * end for end in (difference.low, difference.high))
    return factor * difference.value, low, high


def _format_difference(contrast: Contrast, metric: str) -> str:
    value, low, high = (_format_signed(end, metric) for end in _scale(contrast, metric))
    return f"{value}, no interval" if contrast.difference.low is None else f"{value} ({low} to {high})"


def _format_signed(value: float | None, metric: str) -> str:
    return "-" if value is None else f"{value:+z.{declared(metric).difference_decimals}f}"


def _make_table(rows: Rows, metric: str, *, tested: bool) -> tuple[tuple[str, ...], ...]:
    tests = ("p (Holm)", "verdict") if tested else ()
    return (
        ("arm", f"difference, {declared(metric).unit}", "low", "high", *tests),
        *(
            (
                to_one_line(row.arm),
                *(_format_signed(value, metric) for value in _scale(contrast, metric)),
                *((format_p(contrast.p_holm), VERDICTS[contrast.verdict]) if tested else ()),
            )
            for row, contrast in rows
        ),
    )
