"""The picture of a comparison over several tasks: differences with their intervals, and performance profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr_cli.charts.figure import COLOURS
from rlvr_cli.compare.results import Comparison
from rlvr_cli.compare.words import metric_text, noun
from rlvr_cli.store.metrics import metric as declared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rlvr_cli.stats.clustered import CrossedEstimate

MARKERS = "os^Dv<>P"
# Of the space between two tasks, what their arms take.
_SPREAD = 0.6


def comparison_figure(comparison: Comparison) -> Figure:
    """Left: each arm less the baseline, on the mean and on each task. Right: profiles of all arms.

    Must be called inside ``charts.figure.style()``.
    """
    from matplotlib.figure import Figure

    lines = len(comparison.tasks) + 1
    figure = Figure(figsize=(10.0, 2.4 + 0.35 * max(4, lines, len(comparison.rows))), layout="constrained")
    left, right = figure.subplots(1, 2)
    arms = [row.arm for row in comparison.rows]
    looks = {arm: (COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]) for place, arm in enumerate(arms)}
    _differences(left, comparison, looks)
    _profiles(right, comparison, looks)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
    return figure


def _differences(axes: Axes, comparison: Comparison, looks: dict[str, tuple[str, str]]) -> None:
    factor, name = declared(comparison.metric).factor, declared(comparison.metric).unit
    arms = [row.arm for row in comparison.rows if row.contrast]
    groups: dict[str, dict[str, CrossedEstimate]] = {
        "mean": {row.arm: row.contrast.difference for row in comparison.rows if row.contrast}
    }
    for task, one in comparison.tasks.items():
        groups[task] = {row.arm: row.contrast.difference for row in one.rows if row.contrast}
    for line, found in enumerate(groups.values()):
        for place, arm in enumerate(arms):
            estimate, (colour, marker) = found[arm], looks[arm]
            y = line + _SPREAD * ((place + 0.5) / len(arms) - 0.5)
            axes.plot([estimate.value * factor], [y], marker, color=colour, markersize=5)
            if estimate.low is not None and estimate.high is not None:
                axes.plot([estimate.low * factor, estimate.high * factor], [y, y], color=colour, linewidth=1.4)
    axes.axvline(0.0, color="#7F7F7F", linewidth=0.8)
    axes.set_yticks(range(len(groups)), [f"mean of {len(comparison.tasks)}", *comparison.tasks])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel(f"{metric_text(comparison)} less that of {comparison.scores.baseline} ({name})")
    axes.set_title("difference with 95% interval")


def _profiles(axes: Axes, comparison: Comparison, looks: dict[str, tuple[str, str]]) -> None:
    for row in comparison.rows:
        colour, marker = looks[row.arm]
        profile = row.profile
        label = f"{row.arm} (baseline)" if row.contrast is None else row.arm
        dashes = "--" if row.contrast is None else "-"
        axes.plot(
            profile.thresholds,
            profile.values,
            dashes,
            color=colour,
            label=label,
            marker=marker,
            markevery=10,
            markersize=4,
            drawstyle="steps-post",
        )
        if len(row.scores) > 1:
            axes.fill_between(
                profile.thresholds, profile.low, profile.high, step="post", color=colour, alpha=0.15, linewidth=0
            )
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(metric_text(comparison))
    axes.set_ylabel("share of runs above")
    axes.set_title(f"performance profile, mean over {noun(comparison)}s")
