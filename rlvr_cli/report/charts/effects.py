"""The differences of a comparison with their intervals around zero: a forest plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlvr_cli.compare.results import ArmOnTask, Contrast, TaskComparison
from rlvr_cli.compare.words import VERDICTS, decimals, p_text
from rlvr_cli.core.text import one_line, shortened, told_apart
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.report.charts.chart import MOST_IN_ROW, Chart, DrawnPanel, Row, draw_rows
from rlvr_cli.store.metrics import metric as declared

Rows = Sequence[tuple[ArmOnTask, Contrast]]


def effects_figure(comparison: TaskComparison, indices: Mapping[str, int]) -> Chart:
    """Return a row for each arm but the baseline, in the order of the comparison's table, the largest difference first.

    ``indices``: of the arms on the page, by their names.
    """
    scores = comparison.scores
    metric, base = scores.metric, one_line(scores.baseline)
    of = metric_name(metric).strip()
    title = f"Difference to {base}: {of}"
    rows = comparison.others
    verb = "paired by problem and seed" if scores.paired else "paired by problem, not by seed"
    caption = [
        f"{of} of each arm minus that of {base}, {verb}. Line: 95% interval over runs and problems, of this arm alone."
    ]
    if comparison.tested:
        number = f"{len(rows)} comparison{'' if len(rows) == 1 else 's'}"
        caption.append(f"Full dot: p is below 0.05 after Holm's correction for {number}; hollow: it is not.")
    if any(not contrast.difference.spread_of_runs for _, contrast in rows):
        caption.append("One run an arm: the interval is over problems alone, and single runs do not compare methods.")
    if without := [one_line(row.arm) for row, contrast in rows if contrast.difference.low is None]:
        caption.append(f"Without an interval: {', '.join(without)}.")
    table = _table(rows, metric, tested=comparison.tested)
    return Chart("effects", title, (_draw(title, rows, indices, metric, base),), (" ".join(caption),), table)


def _draw(title: str, rows: Rows, indices: Mapping[str, int], metric: str, base: str) -> DrawnPanel:
    unit, better = declared(metric).unit, declared(metric).higher_is_better
    names = told_apart([one_line(row.arm) for row, _ in rows], MOST_IN_ROW)
    drawn = []
    for (row, contrast), name in zip(rows, names.values(), strict=True):
        value, low, high = _scaled(contrast, metric)
        full = contrast.verdict in ("higher", "lower")
        drawn.append(Row(indices.get(row.arm), name, _text(contrast, metric), value, full, low, high))
    ends = [0.0, *(end for row in drawn for end in (row.value, row.low, row.high) if end is not None)]
    margin = 0.06 * ((max(ends) - min(ends)) or 1.0)
    notes = {True: ("← worse", "better →"), False: ("← better", "worse →"), None: ("← lower", "higher →")}[better]
    domain = (min(ends) - margin, max(ends) + margin)
    return draw_rows(title, drawn, domain, f"{unit}, minus {shortened(base, 28)}", notes)


def _scaled(contrast: Contrast, metric: str) -> tuple[float, float | None, float | None]:
    """Return the difference and the ends of its interval in the unit of the metric."""
    factor, difference = declared(metric).factor, contrast.difference
    low, high = (None if end is None else factor * end for end in (difference.low, difference.high))
    return factor * difference.value, low, high


def _text(contrast: Contrast, metric: str) -> str:
    value, low, high = (_signed(end, metric) for end in _scaled(contrast, metric))
    return f"{value}, no interval" if contrast.difference.low is None else f"{value} ({low} to {high})"


def _signed(value: float | None, metric: str) -> str:
    return "-" if value is None else f"{value:+z.{decimals(metric)}f}"


def _table(rows: Rows, metric: str, *, tested: bool) -> tuple[tuple[str, ...], ...]:
    tests = ("p after Holm", "verdict") if tested else ()
    return (
        ("arm", f"difference, {declared(metric).unit}", "low", "high", *tests),
        *(
            (
                one_line(row.arm),
                *(_signed(value, metric) for value in _scaled(contrast, metric)),
                *((p_text(contrast.p_holm), VERDICTS[contrast.verdict]) if tested else ()),
            )
            for row, contrast in rows
        ),
    )
