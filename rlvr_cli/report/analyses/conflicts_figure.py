"""The picture of `rlvr analyze conflicts`: shares over rollouts, pushes, spans and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlvr_cli.analysis.conflicts import Tally, summary
from rlvr_cli.core.text import shortened
from rlvr_cli.results.figure import COLOURS
from rlvr_cli.results.lines import running_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHARES = {
    "conflict_share": "all",
    "conflict_prefix_share": "in prefixes",
    "conflict_suffix_share": "in suffixes",
}
_PUSHES = {
    "negative_push_share": "of pushes",
    "penalised_correct_share": "of tokens, net",
    "negative_net_share": "of shared prefixes, net",
}
MOST_TEXT = 16


def conflicts_figure(tallies: Mapping[int, Tally], total: Tally, tokens: Sequence[Mapping[str, Any]]) -> Figure:
    """Must be called inside ``results.figure.style()``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 7.2), layout="constrained")
    (left, right), (below, beside) = figure.subplots(2, 2)
    _lines(left, tallies, _SHARES, "share of all tokens in conflict", 0)
    _lines(right, tallies, _PUSHES, "share that GRPO pushes down (GTPO: none)", len(_SHARES))
    right.axhline(0.5, color="#7F7F7F", linewidth=0.8, zorder=0.9)
    right.set_ylim(-0.02, 1.02)
    _spans(below, total)
    _bars(beside, tokens)
    return figure


def _lines(axes: Any, tallies: Mapping[int, Tally], names: Mapping[str, str], title: str, first: int) -> None:
    """Dots, and a running mean over a tenth of the rollouts."""
    axes.set_title(title)
    axes.set_xlabel("rollout, from 0")
    for place, (name, label) in enumerate(names.items(), start=first):
        points = [(number, value) for number, one in tallies.items() if (value := summary(one)[name]) is not None]
        x, y = np.array([at for at, _ in points]), np.array([value for _, value in points])
        look: dict[str, Any] = {"color": COLOURS[place]}
        axes.plot(x, y, "o", markersize=3, alpha=0.4, markeredgewidth=0, **look)
        axes.plot(x, running_mean(y, max(1, round(len(y) / 10))), linewidth=1.5, label=label, **look)
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(names), columnspacing=1.0)


def _spans(axes: Any, total: Tally) -> None:
    """Of how many completions the run is at least so long; logarithmic, as a few are very long."""
    axes.set_title("completions whose run of conflict tokens is at least so long")
    axes.set_xlabel("tokens")
    for place, (label, counts) in enumerate((("prefix", total.prefix_spans), ("suffix", total.suffix_spans)), start=1):
        if counts:
            lengths = sorted(counts)
            left = [sum(counts[other] for other in lengths[at:]) for at in range(len(lengths))]
            axes.step(lengths, left, where="pre", color=COLOURS[place], linewidth=1.5, label=label)
            axes.plot(lengths[-1], left[-1], "o", markersize=3, color=COLOURS[place])
    if total.conflict:
        axes.set_yscale("log")
        axes.set_xlim(left=0)
        axes.legend(fontsize=8)


def _bars(axes: Any, tokens: Sequence[Mapping[str, Any]]) -> None:
    axes.set_title("tokens most often in conflict")
    if not tokens:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color="#777777")
        return
    places = list(range(len(tokens)))
    prefix, suffix = ([one[side] for one in tokens] for side in ("prefix", "suffix"))
    axes.barh(places, prefix, color=COLOURS[1], label="prefix")
    axes.barh(places, suffix, left=prefix, color=COLOURS[2], label="suffix")
    # Dollar signs are mathematics to matplotlib.
    axes.set_yticks(places, [shortened(repr(one["text"]), MOST_TEXT).replace("$", r"\$") for one in tokens])
    axes.invert_yaxis()
    axes.set_xlabel("times in conflict")
    axes.legend(fontsize=8)
