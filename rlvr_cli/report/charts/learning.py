"""Learning curves: one figure per recorded metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rlvr_cli.charts.lines import MOST_RAW, ArmLine, Extent, Panel, Points, XAxis, compute_extents, make_arm_line
from rlvr_cli.core.text import count, join_and, to_one_line
from rlvr_cli.report.charts.chart import BAND_FROM, MOST_ARMS, SEGMENTS, Chart, draw_panels, format_value, legend
from rlvr_cli.report.charts.metrics import MetricFigure, RunRecords, crossed_band, metric_figures, read_run_records
from rlvr_cli.store.find import Run
from rlvr_cli.store.metrics import metric as declared
from rlvr_cli.store.training import BUDGETS

Arms = Mapping[str, Sequence[RunRecords]]
_ROWS = 60
TableRows = tuple[tuple[str, ...], ...]


def learning_figures(arms: Mapping[str, Sequence[Run]], budget: str = "rollouts") -> list[Chart]:
    """Return the learning curves of arms over a budget, in the order of a report, without empty figures.

    A value is drawn at the budget of its rollout's last update. Runs without a step are skipped.

    Args:
        arms: runs by the arm's name, in the order of colours. budget: rollouts, updates, tokens or seconds.
    Raises ValueError for another budget; RunError for damaged records.
    """
    if budget not in BUDGETS:
        raise ValueError(f"budget must be one of {', '.join(BUDGETS)}; got {budget!r}")
    read = {name: [read_run_records(run, budget) for run in runs] for name, runs in arms.items()}
    every = [run for runs in read.values() for run in runs if run.rows]
    figures = (_make_figure(metric, read, budget) for metric in metric_figures(every))
    return [figure for figure in figures if figure is not None]


def _make_figure(metric: MetricFigure, arms: Arms, budget: str) -> Chart | None:
    read = {title: _read_lines(metric, title, arms, budget) for title in metric.panels}
    panels = {title: lines for title, (lines, _) in read.items()}
    every = [each for lines in panels.values() for each in lines]
    if not every:
        return None
    x = _make_x_axis(budget, every)
    drawn = _merge_zeros([Panel(title, tuple(each.line for each in lines)) for title, lines in panels.items() if lines])
    scales = compute_extents(drawn, metric.axis, shared=metric.held_out)
    missing = sum(gaps for _, gaps in read.values())
    return Chart(
        key=metric.key,
        title=metric.title,
        panels=draw_panels(metric.title, drawn, x, metric.axis, scales, marked=metric.held_out),
        sentences=_write_caption(metric, every, [to_one_line(name) for name in arms], x, scales, missing=missing),
        table=curve_table(panels, x, share=metric.axis.share),
        arms=legend(drawn, len(arms)),
    )


def _read_lines(metric: MetricFigure, title: str, arms: Arms, budget: str) -> tuple[list[ArmLine], int]:
    """Return the lines of a panel, and the number of values that are not finite."""
    lines, missing, key, held_out = [], 0, metric.panels[title], metric.held_out
    for arm, (name, runs) in enumerate(arms.items()):
        curves, used = list[Points](), list[RunRecords]()
        for records in runs:
            applies = declared(key).applies(records.run.config.method)
            curve = records.curve(key, held_out=held_out) if applies else None
            if curve is not None:
                missing += curve[1]
            if curve is not None and len(curve[0][0]):
                curves.append(curve[0])
                used.append(records)
        line = make_arm_line(
            arm,
            to_one_line(name),
            curves,
            metric.axis,
            alone=len(arms) == 1,
            interval=used[0].band(key, curves[0][0], held_out=held_out) if len(used) == 1 else None,
            over_problems=partial(crossed_band, used, budget, key) if held_out else None,
            band_from=BAND_FROM,
        )
        if line is not None and line.band_source == "problems" and not held_out:
            # The interval over a rollout's few problems would fill the chart.
            line = replace(line, line=replace(line.line, hide_band=True))
        if line is not None:
            lines.append(line)
    return lines, missing


def _merge_zeros(panels: list[Panel]) -> list[Panel]:
    """Return a single panel if all values of all panels are 0."""
    if len(panels) > 1 and all((y == 0).all() for panel in panels for line in panel.lines for _, y in line.curves):
        return [Panel(join_and([panel.title.partition(":")[0] for panel in panels]), panels[0].lines)]
    return panels


def _make_x_axis(budget: str, lines: Sequence[ArmLine]) -> XAxis:
    if budget == "seconds":
        last = max(float(x[-1]) for each in lines for x, _ in each.line.curves if len(x))
        for unit, seconds in (("hours", 3600.0), ("minutes", 60.0)):
            if last >= 3 * seconds:
                return XAxis(f"{unit} of training", seconds)
        return XAxis("seconds of training")
    return XAxis({"tokens": "sampled tokens", "updates": "updates", "rollouts": "rollouts"}[budget])


def _write_caption(
    metric: MetricFigure,
    lines: Sequence[ArmLine],
    names: Sequence[str],
    x: XAxis,
    scales: Sequence[Extent],
    *,
    missing: int,
) -> tuple[str, ...]:
    """Return the sentences of a caption; ``names``: of all arms, ``missing``: number of dropped values."""
    with_values = {each.line.name for each in lines}
    crowd = describe_crowd(len(with_values))
    sentences = [
        metric.note,
        *(crowd or (*_describe_bands(lines), *_describe_early_ends(lines, x))),
        *_describe_drawing(lines, scales),
    ]
    without = [name for name in names if name not in with_values]
    if without:
        sentences.append(f"No values: {join_and(without)}.")
    if missing:
        sentences.append(f"Dropped: {count(missing, 'non-finite value')}.")
    if all((y == 0).all() for each in lines for _, y in each.line.curves):
        sentences.append("All values are 0.")
    return tuple(filter(None, sentences))


def describe_crowd(arms: int) -> tuple[str, ...]:
    """Return the sentence for charts that draw only the means of too many ``arms``; empty for fewer."""
    if arms <= MOST_ARMS:
        return ()
    return (f"Line: mean over runs; with more than {MOST_ARMS} arms, intervals are only in the table and the tooltip.",)


def _describe_bands(lines: Sequence[ArmLine]) -> list[str]:
    counts = {each.line.name: each.runs for each in lines}
    several = {name: number for name, number in counts.items() if number > 1}
    sentences = []
    if several:
        same = len(set(several.values())) == 1
        of = f"{next(iter(several.values()))} runs" if same else "runs"
        counted = "" if same else f" ({', '.join(f'{name} {number}' for name, number in several.items())})"
        both = any(each.band_source == "both" for each in lines)
        over = "over runs and problems" if both else "Student's t over runs"
        hidden = all(each.line.hide_band for each in lines if each.runs > 1)
        if hidden:
            sentences.append(f"Line: mean over {of}{counted}; thin lines: single runs.")
            sentences.append(f"The 95% interval of the mean ({over}) is in the table.")
        else:
            sentences.append(f"Line: mean over {of}{counted}; band: pointwise 95% interval ({over}).")
        if both and (less := list(dict.fromkeys(each.line.name for each in lines if each.band_source == "runs"))):
            sentences.append(f"{join_and(less)}: over runs alone; evaluations are missing or of different problems.")
        singles = {each.line.name for each in lines if len(each.line.x) and len(each.line.singles) == each.runs > 1}
        if singles and not hidden:
            names = [name for name in several if name in singles]
            sentences.append(
                f"Thin lines: single runs{'' if len(names) == len(several) else f' of {join_and(names)}'}."
            )
    single = [name for name, number in counts.items() if number == 1]
    if single:
        sentences.append(f"{join_and(single) + ': one' if several else 'One'} run, no interval over runs.")
        hidden_bands = {each.line.hide_band for each in lines if each.band_source == "problems"}
        if False in hidden_bands:
            sentences.append("Band: its 95% interval over problems.")
        if True in hidden_bands:
            sentences.append("The 95% interval over a rollout's problems is in the table and the tooltip.")
    return sentences


def _describe_early_ends(lines: Sequence[ArmLine], x: XAxis) -> list[str]:
    sentences = []
    apart = list(dict.fromkeys(each.line.name for each in lines if not len(each.line.x)))
    if apart:
        sentences.append(f"No mean for {join_and(apart)}, whose runs have no common range; thin lines: single runs.")
    early = {each.line.name: each.ends for each in lines if each.ends is not None}
    if early:
        where = ", ".join(f"{name} at {end / x.divide:,.4g}" for name, end in early.items())
        sentences.append(f"A mean ends with its shortest run ({where} {x.label}); thin lines: the longer runs.")
    return sentences


def _describe_drawing(lines: Sequence[ArmLine], scales: Sequence[Extent]) -> list[str]:
    sentences = []
    windows = sorted({each.window for each in lines if each.window > 1})
    if windows:
        sentences.append(
            f"Lines: running means over {' or '.join(map(str, windows))} rollouts (above {MOST_RAW} points); light "
            "lines: raw values."
        )
    if any(len(at) > 4 * SEGMENTS for each in lines for at, _ in each.line.curves):
        sentences.append("Downsampled to the minimum and maximum of each segment.")
    if any(scale.linear is not None for scale in scales):
        sentences.append("Symmetric log scale.")
    if any(scale.cut for scale in scales):
        sentences.append("A band exceeds the axis; its ends are in the table.")
    return sentences


def curve_table(panels: Mapping[str, Sequence[ArmLine]], x: XAxis, *, share: bool) -> TableRows:
    """Return up to 12 points of each line, including its ends: mean, interval, number of runs."""
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
