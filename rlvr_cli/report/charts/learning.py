"""Learning curves: every figure of a training's course that its records have values for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rlvr_cli.core.text import listed, one_line, told_apart
from rlvr_cli.report.charts.captions import learning_caption
from rlvr_cli.report.charts.figure_html import Figure
from rlvr_cli.report.charts.held_out import crossed_band
from rlvr_cli.report.charts.labels import MOST_TITLE
from rlvr_cli.report.charts.lines import MOST_ARMS, draw
from rlvr_cli.report.charts.metrics import Metric, metrics
from rlvr_cli.report.charts.series import Recorded, recorded
from rlvr_cli.report.charts.svg import page_style, page_svg
from rlvr_cli.report.charts.tables import curve_table
from rlvr_cli.results.lines import ArmLine, Interval, Panel, Points, XAxis, arm_line, extents
from rlvr_cli.results.spending import BUDGETS
from rlvr_cli.runs.directory import RunDir

Arms = Mapping[str, Sequence[Recorded]]


def learning_figures(arms: Mapping[str, Sequence[RunDir]], budget: str = "rollouts") -> list[Figure]:
    """The learning curves of arms over a budget, in the order of a report; figures without a value are left out.

    A value is placed where its rollout's last update was done. Runs without a step have no part.

    Args:
        arms: runs by the arm's name, in the order of colours. budget: rollouts, updates, tokens or seconds.
    Raises ValueError for another budget; UserError and RunError for damaged records, as :func:`recorded`.
    """
    if budget not in BUDGETS:
        raise ValueError(f"a budget is one of {', '.join(BUDGETS)}, not {budget!r}")
    read = {name: [recorded(run, budget) for run in runs] for name, runs in arms.items()}
    every = [run for runs in read.values() for run in runs if run.rows]
    with page_style():
        return [figure for metric in metrics(every) for figure in _figures(metric, read, budget)]


def _figures(metric: Metric, arms: Arms, budget: str) -> list[Figure]:
    panels = {title: _lines(metric, title, arms, budget) for title in metric.panels}
    if not any(lines for lines, _ in panels.values()):
        return []
    count = max(len(lines) for lines, _ in panels.values())
    if count > MOST_ARMS and len(panels) > 1:
        # An arm has a panel of its own there, so each panel is a figure.
        return [_figure(metric, {title: one}, arms, budget, part=title) for title, one in panels.items() if one[0]]
    return [_figure(metric, panels, arms, budget)]


def _figure(
    metric: Metric, panels: Mapping[str, tuple[list[ArmLine], int]], arms: Arms, budget: str, part: str = ""
) -> Figure:
    names = [one_line(name) for name in arms]
    x = _x_axis(budget, [one for lines, _ in panels.values() for one in lines])
    apart = any(len(lines) > MOST_ARMS for lines, _ in panels.values())
    if apart:
        ((_, (lines, _)),) = panels.items()
        drawn = by_arm(lines)
    else:
        drawn = _merged(
            [Panel(title, tuple(one.line for one in lines)) for title, (lines, _) in panels.items() if lines]
        )
    shared = apart or metric.marked
    scales = extents(drawn, metric.axis, shared=shared)
    picture = draw(drawn, x, metric.axis, scales, named=len(arms) > 1 and not apart, marked=metric.marked)
    key = f"{metric.key}-{part.partition(':')[0].replace('@', '-')}" if part else metric.key
    title = f"{metric.title}, {part}" if part else metric.title
    missing = sum(gaps for _, gaps in panels.values())
    every = [one for lines, _ in panels.values() for one in lines]
    caption = learning_caption(metric, every, names, x, scales, ranged=apart, missing=missing)
    return Figure(
        key=key,
        title=title,
        svg=page_svg(picture, key, title, caption),
        caption=caption,
        table=curve_table({title: lines for title, (lines, _) in panels.items()}, x, share=metric.axis.share),
    )


def _lines(metric: Metric, title: str, arms: Arms, budget: str) -> tuple[list[ArmLine], int]:
    """The lines of a panel, and how many values were no finite number."""
    found, missing = [], 0
    for arm, (name, runs) in enumerate(arms.items()):
        curves: list[Points] = []
        used: list[Recorded] = []
        for run in runs:
            curve = run.curve(metric.panels[title]) if run.rows and metric.applies(run) else None
            if curve is not None:
                missing += curve[1]
            if curve is not None and len(curve[0][0]):
                curves.append(curve[0])
                used.append(run)
        of = metric.evaluated.get(title)
        line = arm_line(
            arm,
            one_line(name),
            curves,
            metric.axis,
            alone=len(arms) == 1,
            intervals=[_interval(metric, title, run, curve) for run, curve in zip(used, curves, strict=True)],
            over_problems=None if of is None else partial(crossed_band, used, budget, of),
        )
        if line is not None:
            found.append(line)
    return found, missing


def _interval(metric: Metric, title: str, run: Recorded, points: Points) -> Interval | None:
    """The ends of a run's own interval at each of its points; None where it has none."""
    ends = {} if metric.interval is None else metric.interval(run, title)
    if not ends:
        return None
    known = {run.spent[rollout]: pair for rollout, pair in ends.items() if rollout in run.spent}
    table = np.array([known.get(x, (np.nan, np.nan)) for x in points[0].tolist()])
    return (table[:, 0], table[:, 1]) if len(table) else None


def _merged(panels: list[Panel]) -> list[Panel]:
    """One panel in place of several that hold nothing but zeros."""
    if len(panels) > 1 and all((y == 0).all() for panel in panels for line in panel.lines for _, y in line.curves):
        return [Panel(listed([panel.title.partition(":")[0] for panel in panels]), panels[0].lines)]
    return panels


def by_arm(lines: Sequence[ArmLine]) -> list[Panel]:
    """A panel for each arm, all in the first colour, with the range of all arms' means behind."""
    called = told_apart([one.line.name for one in lines], MOST_TITLE)
    means = [(one.line.x, one.line.mean) for one in lines if len(one.line.x)]
    if not means:
        return [Panel(called[one.line.name], (replace(one.line, arm=0),)) for one in lines]
    at = np.unique(np.concatenate([x for x, _ in means]))
    heights = np.array([np.interp(at, x, y, left=np.nan, right=np.nan) for x, y in means])
    context = (at, np.nanmin(heights, axis=0), np.nanmax(heights, axis=0))
    return [Panel(called[one.line.name], (replace(one.line, arm=0),), context) for one in lines]


def _x_axis(budget: str, lines: Sequence[ArmLine]) -> XAxis:
    if budget == "seconds":
        last = max(float(x[-1]) for one in lines for x, _ in one.line.curves if len(x))
        for unit, seconds in (("hours", 3600.0), ("minutes", 60.0)):
            if last >= 3 * seconds:
                return XAxis(f"{unit} of training", seconds)
        return XAxis("seconds of training")
    return XAxis({"tokens": "sampled tokens", "updates": "updates", "rollouts": "rollouts"}[budget])
