"""Draw a comparison over several tasks: differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr_cli.charts.figure import INK, colour
from rlvr_cli.compare.results import ArmResult, Comparison
from rlvr_cli.compare.words import metric_text
from rlvr_cli.core.lazy import alt
from rlvr_cli.store.metrics import metric as declared


def comparison_figure(comparison: Comparison) -> alt.TopLevelMixin:
    """Return the chart of each arm minus the baseline, on the mean over tasks and on each task."""
    tasks: dict[str, Sequence[ArmResult]] = {f"mean of {len(comparison.tasks)}": comparison.rows}
    tasks |= {name: task.rows for name, task in comparison.tasks.items()}
    arms = [row.arm for row in comparison.rows if row.contrast]
    metric = declared(comparison.metric)
    table = [
        {"task": name, "arm": row.arm}
        | {
            end: None if value is None else value * metric.factor
            for end, value in (("low", estimate.low), ("value", estimate.value), ("high", estimate.high))
        }
        for name, rows in tasks.items()
        for row in rows
        if row.contrast and (estimate := row.contrast.difference)
    ]
    title = f"{metric_text(comparison)} minus that of {comparison.scores.baseline} ({metric.unit}), 95% interval"
    base = alt.Chart({"values": table}).encode(
        y=alt.Y("task:N", sort=list(tasks), title=None, axis=alt.Axis(labelLimit=0, ticks=False)),
        yOffset=alt.YOffset("arm:N", sort=arms),
        color=alt.Color(
            "arm:N", title=None, scale=alt.Scale(domain=arms, range=[colour(index) for index in range(len(arms))])
        ),
    )
    dots = base.mark_point(filled=True, size=45, opacity=1).encode(x=alt.X("value:Q", title=title))
    lines = base.mark_rule(strokeWidth=1.6).transform_filter("isValid(datum.low)")
    zero = alt.Chart({"values": [{"value": 0.0}]}).mark_rule(color=INK, strokeWidth=0.8).encode(x="value:Q")
    height = alt.Step(max(14, 40 // max(1, len(arms))))
    bars = lines.encode(x=alt.X("low:Q", title=title), x2="high:Q")
    return alt.layer(zero, bars, dots).properties(width=460, height=height)
