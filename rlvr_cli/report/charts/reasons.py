"""What became of the completions: the rate of each verdict's reason at the beginning and at the end of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlvr_cli.core.text import listed, one_line, shortened, told_apart
from rlvr_cli.report.charts.lines import BAND_FROM, CHARACTER, MARKERS, MOST_ARMS
from rlvr_cli.report.charts.metrics import Recorded, recorded
from rlvr_cli.report.charts.svg import (
    FONT,
    GRID,
    MUTED,
    PAPER,
    SERIES,
    WIDTH,
    Chart,
    new_figure,
    of_arm,
    page_style,
    page_svg,
    percent_tick,
)
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.stats.intervals import Estimate, mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The policy hardly moves within its last rollouts, and one rollout alone is noisy.
LAST = 5
_PREFIX = "reason/"
_ROW, _HEAD, _FOOT = 1.35 * FONT, 26.0, 24.0
_LONGEST = 20


@dataclass(frozen=True)
class _Rate:
    """``runs``: the rate of each in its last rollouts."""

    arm: int
    name: str
    first: Estimate
    last: Estimate
    runs: tuple[float, ...]

    @property
    def few(self) -> bool:
        """Whether its runs are drawn, in place of an interval."""
        return 1 < len(self.runs) < BAND_FROM


def reasons_figure(arms: Mapping[str, Sequence[RunDir]]) -> Chart | None:
    """Each reason's rate in the first rollout and over the last ones, of each arm; None where no run has reasons.

    A rate is the mean over an arm's runs; its 95% interval Student's t over them. The last rollouts are 5, of short
    runs a quarter of all, at least 1.

    Args:
        arms: runs by the arm's name, in the order of colours.
    Raises UserError and RunError for damaged records.
    """
    read = {name: [recorded(run, "rollouts") for run in runs] for name, runs in arms.items()}
    names = list(
        dict.fromkeys(
            key.removeprefix(_PREFIX)
            for runs in read.values()
            for run in runs
            for row in run.rows[:1]
            for key in row
            if key.startswith(_PREFIX)
        )
    )
    rates = {one_line(name): _rates(read, name) for name in names}
    shown = {name: found for name, found in rates.items() if any(one.first.value or one.last.value for one in found)}
    if not shown:
        return None
    never = [name for name, found in rates.items() if found and name not in shown]
    title = "Reasons of the verdicts, before and after"
    caption = _caption(shown, read, never)
    with page_style():
        svg = page_svg(_draw(shown, several=len(arms) > 1), "reasons", title, caption)
    return Chart("reasons", title, svg, (caption,), _table(shown))


def _rates(arms: Mapping[str, Sequence[Recorded]], reason: str) -> list[_Rate]:
    found = []
    for arm, (name, runs) in enumerate(arms.items()):
        curves = [curve[0][1] for run in runs if (curve := run.curve(_PREFIX + reason)) and len(curve[0][1])]
        if curves:
            first = mean_interval([float(values[0]) for values in curves])
            own = tuple(float(values[-last_window(len(values)) :].mean()) for values in curves)
            found.append(_Rate(arm, one_line(name), first, mean_interval(own), own))
    return found


def last_window(rollouts: int) -> int:
    """How many of a run's rollouts are its last ones, where it has so many in all."""
    return min(LAST, max(1, rollouts // 4))


def _caption(shown: Mapping[str, Sequence[_Rate]], arms: Mapping[str, Sequence[Recorded]], never: list[str]) -> str:
    counts = [one.last.n for found in shown.values() for one in found]
    windows = sorted({last_window(len(run.spent)) for runs in arms.values() for run in runs if run.rows})
    of = f"{' or '.join(map(str, windows))} rollout{'s' if windows[-1] > 1 else ''}"
    rates = [one for found in shown.values() for one in found]
    interval = "95% interval of the mean over runs (Student's t), of the last rollouts"
    drawn = ["Small lines: the runs, in their last rollouts."] if any(one.few for one in rates) else []
    if max(counts) >= BAND_FROM:
        drawn.append(f"Bar: {interval}.")
    elif drawn:
        drawn.append(f"The {interval}, is in the table.")
    runs = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    each = f"the mean over {runs} runs an arm" if max(counts) > 1 else "of one run an arm"
    return (
        f"Share of a rollout's completions with each verdict, {each}. Hollow: the first rollout; full: the last {of}. "
        + " ".join([*drawn, *([f"Never given: {listed(never)}."] if never else [])])
    )


def _draw(shown: Mapping[str, Sequence[_Rate]], *, several: bool) -> Figure:
    from matplotlib.figure import Figure

    labels = [one.name for found in shown.values() for one in found] if several else list(shown)
    left = CHARACTER * min(_LONGEST, max(map(len, labels))) + 14.0
    right = CHARACTER * len("100.0% to 100.0%") + 8.0
    called = told_apart(list(dict.fromkeys(one.name for found in shown.values() for one in found)), _LONGEST)
    count = sum(len(found) + 1.25 * several for found in shown.values())
    tall = _ROW * count + 0.5 * _ROW
    height = _HEAD + tall + _FOOT
    picture = Figure(figsize=(WIDTH / 72, height / 72))
    axes = picture.add_axes((left / WIDTH, _FOOT / height, (WIDTH - left - right) / WIDTH, tall / height))
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(tall, 0)
    _scale(axes)
    across = axes.get_yaxis_transform()
    wide = WIDTH - left - right
    at = 0.75 * _ROW
    for reason, found in shown.items():
        if several:
            axes.text(-left / wide, at + 0.1 * _ROW, reason, transform=across, va="center", weight="bold")
            at += _ROW
        for one in found:
            label = called[one.name] if several else shortened(reason, _LONGEST)
            own: dict[str, Any] = {"transform": across, "va": "center", **(of_arm(one.arm) if several else {})}
            axes.text(-left / wide + 8.0 * several / wide, at, label, **own)
            axes.text(1 + right / wide, at, _text(one), ha="right", **own)
            _row(axes, one, at)
            at += _ROW
        at += 0.25 * _ROW * several
    axes.annotate(
        "share of completions", (0, 1), (0, 9), xycoords="axes fraction", textcoords="offset points", va="bottom"
    )
    axes.annotate(
        "first to last",
        (1, 1),
        (right, 9),
        xycoords="axes fraction",
        textcoords="offset points",
        va="bottom",
        ha="right",
        color=MUTED,
    )
    return picture


def _row(axes: Axes, one: _Rate, at: float) -> None:
    colour, shape, own = SERIES[one.arm % MOST_ARMS], MARKERS[one.arm % MOST_ARMS], of_arm(one.arm)
    first, last = one.first.value, one.last.value
    if one.few:
        look: dict[str, Any] = {"marker": "|", "markersize": 9, "markeredgewidth": 1.2, "alpha": 0.7, **own}
        axes.plot(one.runs, [at] * len(one.runs), color=colour, linestyle="none", clip_on=False, **look)
    elif one.last.low is not None and one.last.high is not None:
        ends = np.clip([one.last.low, one.last.high], 0.0, 1.0)
        axes.plot(ends, [at, at], color=colour, linewidth=5.0, alpha=0.3, solid_capstyle="butt", **own)
    axes.plot([first, last], [at, at], color=colour, linewidth=1.4, **own)
    for value, fill in ((first, PAPER), (last, colour)):
        axes.plot(
            [value],
            [at],
            linestyle="none",
            marker=shape,
            markersize=6.5,
            markerfacecolor=fill,
            markeredgecolor=colour,
            markeredgewidth=1.3,
            clip_on=False,
            zorder=2.6,
            **own,
        )


def _scale(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_yticks([])
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent_tick(value)))
    axes.grid(visible=True, axis="x")
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_color(GRID)


def _text(one: _Rate) -> str:
    return f"{new_figure(one.first.value, share=True)} to {new_figure(one.last.value, share=True)}"


def _table(shown: Mapping[str, Sequence[_Rate]]) -> tuple[tuple[str, ...], ...]:
    def cells(rate: Estimate) -> tuple[str, ...]:
        ends = [None if end is None else min(1.0, max(0.0, end)) for end in (rate.low, rate.high)]
        return tuple(new_figure(value, share=True) for value in (rate.value, *ends))

    header = ("reason", "arm", "first rollout", "low", "high", "last rollouts", "low", "high", "runs")
    return (
        header,
        *(
            (reason, one.name, *cells(one.first), *cells(one.last), str(one.last.n))
            for reason, found in shown.items()
            for one in found
        ),
    )
