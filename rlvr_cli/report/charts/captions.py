"""What stands under a chart of curves: what lines and bands are, of how many runs, and what is not shown."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr_cli.core.text import listed
from rlvr_cli.report.charts.metrics import Metric
from rlvr_cli.report.charts.thin import STRETCHES
from rlvr_cli.results.lines import MOST_RAW, ArmLine, Extent, XAxis


def learning_caption(
    metric: Metric,
    lines: Sequence[ArmLine],
    names: Sequence[str],
    x: XAxis,
    scales: Sequence[Extent],
    *,
    ranged: bool,
    missing: int,
) -> str:
    """The caption of a figure of :mod:`learning`, plain sentences.

    ``names``: of all arms. ``ranged``: whether the range of all means lies behind. ``missing``: values left out.
    """
    parts = [metric.note, *_bands(lines), *_ends(lines, x), *_drawing(lines, scales, ranged=ranged)]
    without = [name for name in names if name not in {one.line.name for one in lines}]
    if without:
        parts.append(f"Without a value: {listed(without)}.")
    if missing:
        parts.append(f"Left out: {missing} value{'s that are' if missing > 1 else ' that is'} no finite number.")
    if all((y == 0).all() for one in lines for _, y in one.line.curves):
        parts.append("Every value is 0.")
    return " ".join(part for part in parts if part)


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
        parts.append(
            f"Line: mean over {of}{counted}; band: 95% interval of that mean ({over}, at each point by itself)."
        )
        if both and any(one.banded == "runs" for one in lines):
            less = list(dict.fromkeys(one.line.name for one in lines if one.banded == "runs"))
            parts.append(
                f"Of {listed(less)} it is over runs alone: evaluations are not on disk, or not of the same problems."
            )
        thin = [one.line.name for one in lines if len(one.line.x) and len(one.line.singles) == one.runs > 1]
        if thin and len(set(thin)) == len(several):
            parts.append("Thin lines: the runs.")
        elif thin:
            parts.append(f"Thin lines: the runs of {listed(list(dict.fromkeys(thin)))}.")
        if 2 in several.values():
            parts.append("Two runs give an interval of little worth, drawn faintly.")
    single = [name for name, count in counts.items() if count == 1]
    if single:
        own = any(one.banded == "problems" for one in lines)
        band = (
            "band: its 95% interval over problems, which says nothing of another run"
            if own
            else "no band, which would be over runs"
        )
        parts.append(f"{listed(single) + ': one' if several else 'One'} run; {band}.")
    return parts


def _ends(lines: Sequence[ArmLine], x: XAxis) -> list[str]:
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


def _drawing(lines: Sequence[ArmLine], scales: Sequence[Extent], *, ranged: bool) -> list[str]:
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
    if ranged:
        parts.append("Grey: from the lowest to the highest of all arms' means.")
    if any(scale.cut for scale in scales):
        parts.append("A band leaves the frame; its ends are in the table.")
    return parts
