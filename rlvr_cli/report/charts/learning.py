"""Learning curves: a figure of every metric that the records of training have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rlvr_cli.charts.lines import MOST_RAW, ArmLine, Extent, Panel, Points, XAxis, arm_line, extents
from rlvr_cli.core.text import listed, one_line
from rlvr_cli.report.charts.chart import BAND_FROM, MOST_ARMS, STRETCHES, Chart, draw_panels, format_value, legend
from rlvr_cli.report.charts.metrics import MetricFigure, Recorded, crossed_band, metric_figures, recorded
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import metric as declared
from rlvr_cli.store.training import BUDGETS

Arms = Mapping[str, Sequence[Recorded]]
_ROWS = 60
TableRows = tuple[tuple[str, ...], ...]


def learning_figures(arms: Mapping[str, Sequence[Run]], budget: str = "rollouts") -> list[Chart]:
    """Return the learning curves of arms over a budget, in the order of a report; figures without a value are left out.

    A value is drawn at the budget of its rollout's last update. Runs without a step are left out.

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
    read = {title: _lines(metric, title, arms, budget) for title in metric.panels}
    panels = {title: lines for title, (lines, _) in read.items()}
    every = [each for lines in panels.values() for each in lines]
    if not every:
        return None
    x = _x_axis(budget, every)
    drawn = _merge_zeros([Panel(title, tuple(each.line for each in lines)) for title, lines in panels.items() if lines])
    scales = extents(drawn, metric.axis, shared=metric.held_out)
    missing = sum(gaps for _, gaps in read.values())
    return Chart(
        key=metric.key,
        title=metric.title,
        panels=draw_panels(metric.title, drawn, x, metric.axis, scales, marked=metric.held_out),
        sentences=_caption(metric, every, [one_line(name) for name in arms], x, scales, missing=missing),
        table=curve_table(panels, x, share=metric.axis.share),
        arms=legend(drawn, len(arms)),
    )


def _lines(metric: MetricFigure, title: str, arms: Arms, budget: str) -> tuple[list[ArmLine], int]:
    """Return the lines of a panel, and the number of values that were no finite number."""
    lines, missing, key, held_out = [], 0, metric.panels[title], metric.held_out
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
            lines.append(line)
    return lines, missing


def _merge_zeros(panels: list[Panel]) -> list[Panel]:
    """Return one panel instead of several with nothing but zeros."""
    if len(panels) > 1 and all((y == 0).all() for panel in panels for line in panel.lines for _, y in line.curves):
        return [Panel(listed([panel.title.partition(":")[0] for panel in panels]), panels[0].lines)]
    return panels


def _x_axis(budget: str, lines: Sequence[ArmLine]) -> XAxis:
    if budget == "seconds":
        last = max(float(x[-1]) for each in lines for x, _ in each.line.curves if len(x))
        for unit, seconds in (("hours", 3600.0), ("minutes", 60.0)):
            if last >= 3 * seconds:
                return XAxis(f"{unit} of training", seconds)
        return XAxis("seconds of training")
    return XAxis({"tokens": "sampled tokens", "updates": "updates", "rollouts": "rollouts"}[budget])


def _caption(
    metric: MetricFigure,
    lines: Sequence[ArmLine],
    names: Sequence[str],
    x: XAxis,
    scales: Sequence[Extent],
    *,
    missing: int,
) -> tuple[str, ...]:
    """Return the caption of a learning curve, plain sentences; ``names``: of all arms, ``missing``: values left out."""
    with_values = {each.line.name for each in lines}
    crowd = crowded(len(with_values))
    sentences = [metric.note, *(crowd or (*_bands(lines), *_early_ends(lines, x))), *_drawing(lines, scales)]
    without = [name for name in names if name not in with_values]
    if without:
        sentences.append(f"Without a value: {listed(without)}.")
    if missing:
        sentences.append(f"Left out: {missing} value{'s that are' if missing > 1 else ' that is'} no finite number.")
    if all((y == 0).all() for each in lines for _, y in each.line.curves):
        sentences.append("Every value is 0.")
    return tuple(filter(None, sentences))


def crowded(arms: int) -> tuple[str, ...]:
    """Return the sentence for charts of too many ``arms`` to draw more than their means; nothing for fewer."""
    if arms <= MOST_ARMS:
        return ()
    return (
        f"Line: the mean over an arm's runs, alone: of more than {MOST_ARMS} arms, intervals are in the table below "
        "and under the pointer.",
    )


def _bands(lines: Sequence[ArmLine]) -> list[str]:
    counts = {each.line.name: each.runs for each in lines}
    several = {name: count for name, count in counts.items() if count > 1}
    sentences = []
    if several:
        same = len(set(several.values())) == 1
        of = f"{next(iter(several.values()))} runs" if same else "runs"
        counted = "" if same else f" ({', '.join(f'{name} {count}' for name, count in several.items())})"
        both = any(each.banded == "both" for each in lines)
        over = "over runs and problems, as in the comparison" if both else "Student's t over runs"
        few = all(each.line.few for each in lines if each.runs > 1)
        if few:
            sentences.append(f"Line: mean over {of}{counted}; thin lines: the runs.")
            sentences.append(
                "The 95% interval of that mean is in the table below the chart; of so few runs it is wide."
            )
        else:
            interval = f"95% interval of that mean ({over}, at each point by itself)"
            sentences.append(f"Line: mean over {of}{counted}; band: {interval}.")
        if few and both:
            sentences.append("The interval is over runs and problems, as in the comparison.")
        if both and (less := list(dict.fromkeys(each.line.name for each in lines if each.banded == "runs"))):
            sentences.append(
                f"Of {listed(less)} it is over runs alone: evaluations are not on disk, or not of the same problems."
            )
        singles = {each.line.name for each in lines if len(each.line.x) and len(each.line.singles) == each.runs > 1}
        if singles and not few:
            names = [name for name in several if name in singles]
            sentences.append(f"Thin lines: the runs{'' if len(names) == len(several) else f' of {listed(names)}'}.")
    single = [name for name, count in counts.items() if count == 1]
    if single:
        sentences.append(f"{listed(single) + ': one' if several else 'One'} run, so no interval over runs.")
        few_bands = {each.line.few for each in lines if each.banded == "problems"}
        if False in few_bands:
            sentences.append("Band: its 95% interval over problems, not over runs.")
        if True in few_bands:
            sentences.append("The 95% interval over a rollout's problems is in the table, and under the pointer.")
    return sentences


def _early_ends(lines: Sequence[ArmLine], x: XAxis) -> list[str]:
    sentences = []
    apart = list(dict.fromkeys(each.line.name for each in lines if not len(each.line.x)))
    if apart:
        sentences.append(f"No mean of {listed(apart)}, whose runs have no stretch in common: thin lines are the runs.")
    early = {each.line.name: each.ends for each in lines if each.ends is not None}
    if early:
        where = ", ".join(f"{name} at {end / x.divide:,.4g}" for name, end in early.items())
        sentences.append(
            f"A mean ends where its shortest run does ({where} {x.label}); thin lines are the longer runs."
        )
    return sentences


def _drawing(lines: Sequence[ArmLine], scales: Sequence[Extent]) -> list[str]:
    sentences = []
    windows = sorted({each.window for each in lines if each.window > 1})
    if windows:
        sentences.append(
            f"Lines are running means of each run over {' or '.join(map(str, windows))} rollouts (there are more than "
            f"{MOST_RAW}); the light line is without it."
        )
    if any(len(at) > 4 * STRETCHES for each in lines for at, _ in each.line.curves):
        sentences.append("Of points too many to be seen, the least and the greatest of each stretch are drawn.")
    if any(scale.linear is not None for scale in scales):
        sentences.append("The scale of heights is linear at the bottom, with its 0, and logarithmic above.")
    if any(scale.cut for scale in scales):
        sentences.append("A band leaves the frame; its ends are in the table.")
    return sentences


def curve_table(panels: Mapping[str, Sequence[ArmLine]], x: XAxis, *, share: bool) -> TableRows:
    """Return up to 12 points of every line, with the first and the last: mean, interval, number of runs."""
    several = len(panels) > 1
    most = min(12, max(2, _ROWS // max(1, sum(map(len, panels.values())))))
    rows: list[tuple[str, ...]] = [(*(["panel"] if several else []), "arm", x.label, "mean", "low", "high", "runs")]
    for title, arms in panels.items():
        for each in arms:
            line = each.line
            for index in sorted({int(at) for at in np.linspace(0, len(line.x) - 1, min(most, len(line.x))).round()}):
                ends = [edge[index] if edge is not None else None for edge in (line.low, line.high)]
                numbers = [format_value(value, share=share) for value in (line.mean[index], *ends)]
                at = f"{line.x[index] / x.divide:,.6g}"
                rows.append((*([title] if several else []), line.name, at, *numbers, str(each.runs)))
    return tuple(rows)
