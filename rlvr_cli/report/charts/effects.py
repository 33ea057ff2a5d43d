"""The differences of a comparison with their intervals around zero: a forest plot."""

from __future__ import annotations

from collections.abc import Mapping

from rlvr_cli.compare.results import ArmOnTask, Contrast, TaskComparison
from rlvr_cli.compare.words import VERDICTS, decimals, p_text
from rlvr_cli.core.text import one_line, shortened, told_apart
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.report.charts.chart import MOST_IN_ROW, Chart, DrawnPanel, Row, draw_rows
from rlvr_cli.store.metrics import metric as declared


def effects_figure(comparison: TaskComparison, places: Mapping[str, int]) -> Chart:
    """A row for each arm but the baseline, in the order of the comparison's table, the largest difference first.

    ``places``: of the arms on the page, by their names.
    """
    scores = comparison.scores
    metric, base = scores.metric, one_line(scores.baseline)
    of = metric_name(metric).strip()
    title = f"Difference to {base}: {of}"
    rows = comparison.others
    verb = "paired by problem and seed" if scores.paired else "paired by problem, not by seed"
    without = [one_line(row.arm) for row, contrast in rows if contrast.difference.low is None]
    dots = (
        f" Full dot: p is below 0.05 after Holm's correction for {_comparisons(len(rows))}; hollow: it is not."
        if comparison.tested
        else ""
    )
    caption = (
        f"{of} of each arm minus that of {base}, {verb}. Line: 95% interval over runs and problems, of this arm alone."
        + dots
        + (" One run an arm: the interval is over problems alone, and says nothing of the methods." * _one_run(rows))
        + (f" Without an interval: {', '.join(without)}." if without else "")
    )
    table = _table(rows, metric, tested=comparison.tested)
    return Chart("effects", title, (_draw(title, rows, places, metric, base),), (caption,), table)


def _comparisons(count: int) -> str:
    return f"{count} comparison{'' if count == 1 else 's'}"


def _one_run(rows: list[tuple[ArmOnTask, Contrast]]) -> bool:
    return any(not contrast.difference.spread_of_runs for _, contrast in rows)


def _draw(
    title: str, rows: list[tuple[ArmOnTask, Contrast]], places: Mapping[str, int], metric: str, base: str
) -> DrawnPanel:
    factor, of = declared(metric).factor, declared(metric).unit
    names = told_apart([one_line(row.arm) for row, _ in rows], MOST_IN_ROW)
    drawn = [
        Row(
            arm=places.get(row.arm),
            name=name,
            text=_text(contrast, metric),
            value=factor * contrast.difference.value,
            full=contrast.verdict in ("higher", "lower"),
            low=None if contrast.difference.low is None else factor * contrast.difference.low,
            high=None if contrast.difference.high is None else factor * contrast.difference.high,
        )
        for (row, contrast), name in zip(rows, names.values(), strict=True)
    ]
    ends = [0.0, *(end for row in drawn for end in (row.value, row.low, row.high) if end is not None)]
    margin = 0.06 * ((max(ends) - min(ends)) or 1.0)
    better = declared(metric).higher_is_better
    left, right = {True: ("worse", "better"), False: ("better", "worse"), None: ("lower", "higher")}[better]
    domain = (min(ends) - margin, max(ends) + margin)
    return draw_rows(title, drawn, domain, f"{of}, minus {shortened(base, 28)}", (f"← {left}", f"{right} →"))


def _text(contrast: Contrast, metric: str) -> str:
    factor = declared(metric).factor
    difference, digits = contrast.difference, decimals(metric)
    value = f"{difference.value * factor:+z.{digits}f}"
    if difference.low is None or difference.high is None:
        return f"{value}, no interval"
    return f"{value} ({difference.low * factor:+z.{digits}f} to {difference.high * factor:+z.{digits}f})"


def _table(rows: list[tuple[ArmOnTask, Contrast]], metric: str, *, tested: bool) -> tuple[tuple[str, ...], ...]:
    factor, name = declared(metric).factor, declared(metric).unit
    digits = decimals(metric)

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value * factor:+z.{digits}f}"

    header = ("arm", f"difference, {name}", "low", "high", *(("p after Holm", "verdict") if tested else ()))
    return (
        header,
        *(
            (
                one_line(row.arm),
                *(shown(value) for value in (one.difference.value, one.difference.low, one.difference.high)),
                *((p_text(one.p_holm), VERDICTS[one.verdict]) if tested else ()),
            )
            for row, one in rows
        ),
    )
