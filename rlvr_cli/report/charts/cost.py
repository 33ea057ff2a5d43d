"""Held-out accuracy over cost: tokens and seconds of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlvr_cli.charts.lines import Line, Panel, XAxis, YAxis, compute_extents
from rlvr_cli.report.charts.chart import Chart, DrawnPanel, draw_panels, format_value, legend
from rlvr_cli.stats.clustered import CrossedEstimate


def cost_figure(
    spent: Mapping[str, Mapping[str, float]],
    metric: str,
    accuracies: Mapping[str, CrossedEstimate],
    names: Sequence[str],
) -> Chart | None:
    """Return a point per arm over mean tokens and seconds of a run; None without two arms with both."""
    both = [name for name in names if name in spent and name in accuracies]
    kinds = [kind for kind in ("tokens", "seconds") if both and all(spent[name].get(kind) for name in both)]
    if len(both) < 2 or not kinds:
        return None
    axis, panels, pictures = YAxis(metric, share=True), list[Panel](), list[DrawnPanel]()
    for kind in kinds:
        points = (_point(names.index(name), name, spent[name][kind], accuracies[name]) for name in both)
        panels.append(Panel("", tuple(points)))
        x = XAxis({"tokens": "sampled tokens per run", "seconds": "seconds of training per run"}[kind])
        pictures += draw_panels(
            "Accuracy over cost", panels[-1:], x, axis, compute_extents(panels[-1:], axis, shared=True)
        )
    rows = []
    for name in both:
        estimate = accuracies[name]
        values = (format_value(value, share=True) for value in (estimate.value, estimate.low, estimate.high))
        rows.append((name, *(f"{spent[name][kind]:,.6g}" for kind in kinds), *values))
    caption = (
        f"Held-out accuracy ({metric}) of the last checkpoints over the cost of training, means over runs. Error bar: "
        "95% interval over runs and problems. Up and left is better.",
    )
    header = ("arm", *kinds, metric, "low", "high")
    return Chart("cost", "Accuracy over cost", tuple(pictures), caption, (header, *rows), legend(panels, len(both)))


def _point(arm: int, name: str, cost: float, accuracy: CrossedEstimate) -> Line:
    low, high = (np.array([np.nan if end is None else end]) for end in (accuracy.low, accuracy.high))
    return Line(arm, name, np.array([cost]), np.array([accuracy.value]), low, high)
