"""The differences of a comparison with their intervals around zero: a forest plot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlvr_cli.compare.results import ArmOnTask, Contrast, TaskComparison
from rlvr_cli.compare.words import VERDICTS, decimals, p_text
from rlvr_cli.core.text import one_line, shortened, told_apart
from rlvr_cli.evaluation.tables import metric_name
from rlvr_cli.report.charts.lines import CHARACTER
from rlvr_cli.report.charts.svg import (
    FONT,
    GRID,
    INK,
    MUTED,
    PAPER,
    SERIES,
    WIDTH,
    Chart,
    of_arm,
    page_style,
    page_svg,
    tick,
)
from rlvr_cli.store.metrics import metric as declared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _HEAD, _FOOT, _SIDE = 3.2 * FONT, 6.0, 40.0, 14.0


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
    with page_style():
        svg = page_svg(_draw(rows, places, metric, base), "effects", title, caption)
    return Chart("effects", title, svg, (caption,), _table(rows, metric, tested=comparison.tested))


def _comparisons(count: int) -> str:
    return f"{count} comparison{'' if count == 1 else 's'}"


def _one_run(rows: list[tuple[ArmOnTask, Contrast]]) -> bool:
    return any(not contrast.difference.spread_of_runs for _, contrast in rows)


def _draw(rows: list[tuple[ArmOnTask, Contrast]], places: Mapping[str, int], metric: str, base: str) -> Figure:
    from matplotlib.figure import Figure

    height = _HEAD + _ROW * len(rows) + _FOOT
    picture = Figure(figsize=(WIDTH / 72, height / 72))
    wide = WIDTH - 2 * _SIDE
    axes = picture.add_axes((_SIDE / WIDTH, _FOOT / height, wide / WIDTH, _ROW * len(rows) / height))
    factor, of = declared(metric).factor, declared(metric).unit
    ends = [0.0]
    for _, contrast in rows:
        difference = contrast.difference
        ends += [factor * end for end in (difference.value, difference.low, difference.high) if end is not None]
    margin = 0.06 * ((max(ends) - min(ends)) or 1.0)
    axes.set_xlim(min(ends) - margin, max(ends) + margin)
    axes.set_ylim(_ROW * len(rows), 0)
    axes.axvline(0.0, color=INK, linewidth=1.0, zorder=1.6)
    texts = [_text(contrast, metric) for _, contrast in rows]
    room = int(wide / CHARACTER) - max(map(len, texts)) - 2
    names = told_apart([one_line(row.arm) for row, _ in rows], max(12, room))
    for place, ((row, contrast), name, text) in enumerate(zip(rows, names.values(), texts, strict=True)):
        own = of_arm(places[row.arm]) if row.arm in places else {}
        _row(axes, contrast, metric, (name, text), _ROW * place, own)
    _scale(axes)
    below: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top"}
    axes.annotate(f"{of}, minus {shortened(base, 28)}", (0.5, 0), (0, -22), ha="center", **below)
    better = declared(metric).higher_is_better
    left, right = {True: ("worse", "better"), False: ("better", "worse"), None: ("lower", "higher")}[better]
    for share, text, side in ((0.0, f"← {left}", "left"), (1.0, f"{right} →", "right")):
        axes.annotate(text, (share, 0), (0, -22), ha=side, color=MUTED, **below)
    return picture


def _row(
    axes: Axes, contrast: Contrast, metric: str, said: tuple[str, str], top: float, own: Mapping[str, Any]
) -> None:
    """Name and numbers in one line, the interval below them; ``own``: what makes them the arm's."""
    factor = declared(metric).factor
    difference = contrast.difference
    told = contrast.verdict in ("higher", "lower")
    across = axes.get_yaxis_transform()
    # The lines of the scale pass behind the words.
    behind = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}
    for share, words, side in ((0, said[0], "left"), (1, said[1], "right")):
        axes.text(share, top + 1.1 * FONT, words, transform=across, va="baseline", ha=side, bbox=behind, **own)
    at, colour = top + 2.0 * FONT, SERIES[0]
    if difference.low is not None and difference.high is not None:
        ends = [factor * difference.low, factor * difference.high]
        axes.plot(ends, [at, at], color=colour, linewidth=2.0, zorder=2.4, solid_capstyle="butt", **own)
        caps: dict[str, Any] = {"marker": "|", "markersize": 8, "markeredgewidth": 1.6, **own}
        axes.plot(ends, [at, at], color=colour, linestyle="none", **caps)
    axes.plot(
        [factor * difference.value],
        [at],
        linestyle="none",
        marker="o",
        markersize=7.5,
        markerfacecolor=colour if told else PAPER,
        markeredgecolor=colour,
        markeredgewidth=1.6,
        zorder=2.6,
        **own,
    )


def _scale(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: ("+" if value > 0 else "") + tick(value)))
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_color(GRID)


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
