"""Learning curves: every figure of a training's course that its records have values for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rlvr_cli.charts.lines import MOST_RAW, ArmLine, Extent, Panel, Points, XAxis, arm_line, extents
from rlvr_cli.core.text import listed, one_line
from rlvr_cli.report.charts.chart import BAND_FROM, MOST_ARMS, STRETCHES, Chart, draw_panels, legend, new_figure
from rlvr_cli.report.charts.metrics import MetricFigure, Recorded, crossed_band, metric_figures, recorded
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import metric as declared
from rlvr_cli.store.training import BUDGETS

Arms = Mapping[str, Sequence[Recorded]]
_ROWS = 60
TableRows = tuple[tuple[str, ...], ...]


def learning_figures(arms: Mapping[str, Sequence[Run]], budget: str = "rollouts") -> list[Chart]:
    """The learning curves of arms over a budget, in the order of a report; figures without a value are left out.

    A value is placed where its rollout's last update was done. Runs without a step have no part.

    Args:
        arms: runs by the arm's name, in the order of colours. budget: rollouts, updates, tokens or seconds.
    Raises ValueError for another budget; RunError for damaged records.
    """
    if budget not in BUDGETS:
        raise ValueError(f"a budget is one of {', '.join(BUDGETS)}, not {budget!r}")
    read = {name: [recorded(run, budget) for run in runs] for name, runs in arms.items()}
    every = [run for runs in read.values() for run in runs if run.rows]
    figures = (_figure(metric, read, budget) for metric in metric_figures(every))
    return [figure for figure in figures if figure is not None]


def _figure(metric: MetricFigure, arms: Arms, budget: str) -> Chart | None:
    found = {title: _lines(metric, title, arms, budget) for title in metric.panels}
    panels = {title: lines for title, (lines, _) in found.items()}
    every = [one for lines in panels.values() for one in lines]
    if not every:
        return None
    x = _x_axis(budget, every)
    drawn = _merged([Panel(title, tuple(one.line for one in lines)) for title, lines in panels.items() if lines])
    scales = extents(drawn, metric.axis, shared=metric.held_out)
    missing = sum(gaps for _, gaps in found.values())
    return Chart(
        key=metric.key,
        title=metric.title,
        panels=draw_panels(metric.title, drawn, x, metric.axis, scales, marked=metric.held_out),
        sentences=learning_caption(metric, every, [one_line(name) for name in arms], x, scales, missing=missing),
        table=curve_table(panels, x, share=metric.axis.share),
        arms=legend(drawn, len(arms)),
    )


def _lines(metric: MetricFigure, title: str, arms: Arms, budget: str) -> tuple[list[ArmLine], int]:
    """The lines of a panel, and how many values were no finite number."""
    found, missing, key, held_out = [], 0, metric.panels[title], metric.held_out
    for arm, (name, runs) in enumerate(arms.items()):
        curves, used = list[Points](), list[Recorded]()
        for records in runs:
            applies = declared(key).applies(records.run.config.method)
            curve = records.curve(key, held_out=held_out) if applies else None
            if curve is not None:
                missing += curve[1]
            if curve is not None and len(curve[0][0]):
                curves.append(curve[0])
                used.append(records)
        line = arm_line(
            arm,
            one_line(name),
            curves,
            metric.axis,
            alone=len(arms) == 1,
            interval=used[0].band(key, curves[0][0], held_out=held_out) if len(used) == 1 else None,
            over_problems=partial(crossed_band, used, budget, key) if held_out else None,
            band_from=BAND_FROM,
        )
        if line is not None and line.banded == "problems" and not held_out:
            # A rollout has few problems: their interval would fill the chart.
            line = replace(line, line=replace(line.line, few=True))
        if line is not None:
            found.append(line)
    return found, missing


def _merged(panels: list[Panel]) -> list[Panel]:
    """One panel in place of several that hold nothing but zeros."""
    if len(panels) > 1 and all((y == 0).all() for panel in panels for line in panel.lines for _, y in line.curves):
        return [Panel(listed([panel.title.partition(":")[0] for panel in panels]), panels[0].lines)]
    return panels


def _x_axis(budget: str, lines: Sequence[ArmLine]) -> XAxis:
    if budget == "seconds":
        last = max(float(x[-1]) for one in lines for x, _ in one.line.curves if len(x))
        for unit, seconds in (("hours", 3600.0), ("minutes", 60.0)):
            if last >= 3 * seconds:
                return XAxis(f"{unit} of training", seconds)
        return XAxis("seconds of training")
    return XAxis({"tokens": "sampled tokens", "updates": "updates", "rollouts": "rollouts"}[budget])


def learning_caption(
    metric: MetricFigure,
    lines: Sequence[ArmLine],
    names: Sequence[str],
    x: XAxis,
    scales: Sequence[Extent],
    *,
    missing: int,
) -> tuple[str, ...]:
    """The caption of a figure of :mod:`learning`, plain sentences.

    ``names``: of all arms. ``missing``: values left out.
    """
    crowd = crowded(len({one.line.name for one in lines}))
    parts = [metric.note, *(crowd or (*_bands(lines), *_early_ends(lines, x))), *_drawing(lines, scales)]
    without = [name for name in names if name not in {one.line.name for one in lines}]
    if without:
        parts.append(f"Without a value: {listed(without)}.")
    if missing:
        parts.append(f"Left out: {missing} value{'s that are' if missing > 1 else ' that is'} no finite number.")
    if all((y == 0).all() for one in lines for _, y in one.line.curves):
        parts.append("Every value is 0.")
    return tuple(part for part in parts if part)


def crowded(arms: int) -> tuple[str, ...]:
    """What a caption says where there are too many arms for more than their means."""
    if arms <= MOST_ARMS:
        return ()
    return (
        f"Line: the mean over an arm's runs, alone: of more than {MOST_ARMS} arms, intervals are in the table below "
        "and under the pointer.",
    )


def _bands(lines: Sequence[ArmLine]) -> list[str]:
    counts = {one.line.name: one.runs for one in lines}
    several = {name: count for name, count in counts.items() if count > 1}
    parts = []
    if several:
        same = len(set(several.values())) == 1
        of = f"{next(iter(several.values()))} runs" if same else "runs"
        counted = "" if same else f" ({', '.join(f'{name} {count}' for name, count in several.items())})"
        both = any(one.banded == "both" for one in lines)
        over = "over runs and problems, as in the comparison" if both else "Student's t over runs"
        few = all(one.line.few for one in lines if one.runs > 1)
        if few:
            parts.append(f"Line: mean over {of}{counted}; thin lines: the runs.")
            parts.append("The 95% interval of that mean is in the table below the chart; of so few runs it is wide.")
        else:
            interval = f"95% interval of that mean ({over}, at each point by itself)"
            parts.append(f"Line: mean over {of}{counted}; band: {interval}.")
        if few and both:
            parts.append("The interval is over runs and problems, as in the comparison.")
        if both and any(one.banded == "runs" for one in lines):
            less = list(dict.fromkeys(one.line.name for one in lines if one.banded == "runs"))
            parts.append(
                f"Of {listed(less)} it is over runs alone: evaluations are not on disk, or not of the same problems."
            )
        thin = [one.line.name for one in lines if len(one.line.x) and len(one.line.singles) == one.runs > 1]
        if thin and not few:
            whose = "" if len(set(thin)) == len(several) else f" of {listed(list(dict.fromkeys(thin)))}"
            parts.append(f"Thin lines: the runs{whose}.")
    single = [name for name, count in counts.items() if count == 1]
    if single:
        parts.append(f"{listed(single) + ': one' if several else 'One'} run, so no interval over runs.")
        drawn = {one.line.few for one in lines if one.banded == "problems"}
        if False in drawn:
            parts.append("Band: its 95% interval over problems, which says nothing of another run.")
        if True in drawn:
            parts.append("The 95% interval over a rollout's problems is in the table, and under the pointer.")
    return parts


def _early_ends(lines: Sequence[ArmLine], x: XAxis) -> list[str]:
    parts = []
    apart = list(dict.fromkeys(one.line.name for one in lines if not len(one.line.x)))
    if apart:
        parts.append(f"No mean of {listed(apart)}, whose runs have no stretch in common: thin lines are the runs.")
    early = {one.line.name: one.ends for one in lines if one.ends is not None}
    if early:
        where = ", ".join(f"{name} at {end / x.divide:,.4g}" for name, end in early.items())
        parts.append(
            f"A mean ends where its shortest run does ({where} {x.label}); thin lines are the runs that go on."
        )
    return parts


def _drawing(lines: Sequence[ArmLine], scales: Sequence[Extent]) -> list[str]:
    parts = []
    windows = sorted({one.window for one in lines if one.window > 1})
    if windows:
        parts.append(
            f"Lines are running means of each run over {' or '.join(map(str, windows))} rollouts (there are more than "
            f"{MOST_RAW}); the light line is without it."
        )
    if any(len(at) > 4 * STRETCHES for one in lines for at, _ in one.line.curves):
        parts.append("Of points too many to be seen, the least and the greatest of each stretch are drawn.")
    if any(scale.linear is not None for scale in scales):
        parts.append("The scale of heights is linear at the bottom, with its 0, and logarithmic above.")
    if any(scale.cut for scale in scales):
        parts.append("A band leaves the frame; its ends are in the table.")
    return parts


def curve_table(panels: Mapping[str, Sequence[ArmLine]], x: XAxis, *, share: bool) -> TableRows:
    """Up to a dozen points of every line, the first and the last among them: mean, interval, number of runs."""
    several = len(panels) > 1
    lines = sum(map(len, panels.values()))
    most = min(12, max(2, _ROWS // max(1, lines)))
    rows: list[tuple[str, ...]] = [(*(["panel"] if several else []), "arm", x.label, "mean", "low", "high", "runs")]
    for title, arms in panels.items():
        for one in arms:
            line = one.line
            for place in _spaced(len(line.x), most):
                ends = [part[place] if part is not None else None for part in (line.low, line.high)]
                numbers = [new_figure(value, share=share) for value in (line.mean[place], *ends)]
                at = f"{line.x[place] / x.divide:,.6g}"
                rows.append((*([title] if several else []), line.name, at, *numbers, str(one.runs)))
    return tuple(rows)


def _spaced(count: int, most: int) -> list[int]:
    if count == 0:
        return []
    return sorted({int(place) for place in np.linspace(0, count - 1, min(most, count)).round()})
