"""The picture of a comparison over several tasks: differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlvr_cli.charts.figure import COLOURS
from rlvr_cli.compare.results import ArmResult, Comparison
from rlvr_cli.compare.words import metric_text
from rlvr_cli.store.metrics import metric as declared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "os^Dv<>P"
# The share of the space between two tasks that their arms take.
_SPREAD = 0.6


def comparison_figure(comparison: Comparison) -> Figure:
    """Draw each arm minus the baseline, on the mean over tasks and on each task.

    Must be called inside ``charts.figure.style()``.
    """
    from matplotlib.figure import Figure

    tasks: dict[str, Sequence[ArmResult]] = {f"mean of {len(comparison.tasks)}": comparison.rows}
    tasks |= {name: task.rows for name, task in comparison.tasks.items()}
    arms = [row.arm for row in comparison.rows if row.contrast]
    figure = Figure(figsize=(7.0, 2.0 + 0.35 * len(tasks) * max(1.0, len(arms) / 2)), layout="constrained")
    axes = figure.subplots()
    factor = declared(comparison.metric).factor
    for line, rows in enumerate(tasks.values()):
        differences = {row.arm: row.contrast.difference for row in rows if row.contrast}
        for place, arm in enumerate(arms):
            estimate, y = differences[arm], line + _SPREAD * ((place + 0.5) / len(arms) - 0.5)
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
            label = arm if line == 0 else None
            axes.plot([estimate.value * factor], [y], marker, color=colour, markersize=5, label=label)
            if estimate.low is not None and estimate.high is not None:
                axes.plot([estimate.low * factor, estimate.high * factor], [y, y], color=colour, linewidth=1.4)
    axes.axvline(0.0, color="#7F7F7F", linewidth=0.8)
    axes.set_yticks(range(len(tasks)), list(tasks))
    axes.set_ylim(len(tasks) - 0.5, -0.5)
    unit = declared(comparison.metric).unit
    axes.set_xlabel(f"{metric_text(comparison)} minus that of {comparison.scores.baseline} ({unit}), 95% interval")
    figure.legend(loc="outside lower center", ncols=min(6, len(arms)))
    return figure
