"""The overview: how far each claim's effect is from its threshold, in units of its own uncertainty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlvr_cli.charts.figure import COLOURS
from rlvr_cli.ledger.claim_results import ClaimResult
from rlvr_cli.ledger.schema import PAPERS, Claim, Rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = tuple[Claim, ClaimResult | None, ClaimResult | None]
VERDICT_COLOURS = {"holds": COLOURS[2], "does not hold": COLOURS[1], "undecided": COLOURS[7]}
# Half widths up to which the axis is linear, and where it ends.
_LINEAR, _FARTHEST = 2.0, 100.0
_ROW = 0.21


def distance(found: ClaimResult, rule: Rule) -> tuple[float, bool] | None:
    """The effect's distance from the threshold it is nearest to, above 0 where the claim would hold.

    In half widths of its interval, at most 100; of an effect without spread 100, and True. None without an interval.
    """
    if found.mean is None or found.low is None or found.high is None:
        return None
    low, high = rule.bounds
    margins = [found.mean - low] if low is not None else []
    margins += [high - found.mean] if high is not None else []
    margin, half = min(margins), (found.high - found.low) / 2
    if half == 0:
        return (_FARTHEST if found.verdict == "holds" else -_FARTHEST), True
    return max(-_FARTHEST, min(_FARTHEST, margin / half)), False


def claims_figure(rows: Sequence[Row]) -> Figure:
    """A line a claim that can fail, under its paper's name; must be called inside ``charts.figure.style()``."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    rows = [row for row in rows if not row[0].cannot_fail]
    papers = [paper for paper in PAPERS if any(claim.paper == paper for claim, _, _ in rows)]
    lines = len(rows) + len(papers)
    figure = Figure(figsize=(8.6, _ROW * lines + 1.1), layout="constrained")
    axes = figure.subplots()
    height, labels = 0.0, list[tuple[float, str, bool]]()
    for paper in papers:
        labels.append((height, PAPERS[paper], True))
        height += 1
        for claim, found, second in (row for row in rows if row[0].paper == paper):
            labels.append((height, claim.id.partition("/")[2], False))
            _mark(axes, height, claim, found, second)
            height += 1
    axes.axvline(0, color="#000000", linewidth=0.8, zorder=1)
    axes.axvspan(-1, 1, color="#000000", alpha=0.05, linewidth=0, zorder=0)
    axes.set_xscale("symlog", linthresh=_LINEAR)
    axes.set_xlim(-_FARTHEST * 1.4, _FARTHEST * 1.4)
    ticks = [-100, -10, -1, 0, 1, 10, 100]
    axes.set_xticks(ticks, [f"{tick}" if abs(tick) < _FARTHEST else f"{tick}+" for tick in ticks])
    axes.set_xlabel("distance from the threshold, in half widths of the 95% interval (right: as claimed)")
    axes.set_yticks([place for place, _, _ in labels], [text for _, text, _ in labels])
    for tick, (_, _, heading) in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set_fontweight("bold" if heading else "normal")
        tick.set_fontsize(8.5 if heading else 7.5)
    axes.set_ylim(height - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    marks = [Line2D([], [], color=colour, marker="o", label=verdict) for verdict, colour in VERDICT_COLOURS.items()]
    style: dict[str, Any] = {"color": "#000000", "linestyle": "none", "markersize": 4.5}
    marks.append(Line2D([], [], marker="o", markerfacecolor="none", label="second set", **style))
    marks.append(Line2D([], [], marker="D", label="no spread", **style))
    figure.legend(handles=marks, loc="outside upper center", ncols=len(marks), fontsize=8)
    return figure


def _mark(axes: Any, height: float, claim: Claim, found: ClaimResult | None, second: ClaimResult | None) -> None:
    """One claim's dot and bar, and the ring of the second set."""
    placed = None if found is None else distance(found, claim.rule)
    if found is None or placed is None:
        said = "not run" if found is None else found.verdict
        axes.text(0.2, height, said, fontsize=7, va="center", color="#555555")
        return
    place, point = placed
    colour = VERDICT_COLOURS[found.verdict]
    if point:
        axes.plot(place, height, marker="D", markersize=4, color=colour, zorder=3)
    else:
        axes.plot([place - 1, place + 1], [height, height], color=colour, linewidth=1.6, zorder=2)
        axes.plot(place, height, marker="o", markersize=4.5, color=colour, zorder=3)
    other = None if second is None else distance(second, claim.rule)
    if other is not None and not found.exact:
        style = {"marker": "o", "markersize": 5, "markerfacecolor": "none", "markeredgewidth": 0.9}
        axes.plot(other[0], height + 0.28, color="#000000", zorder=4, **style)
