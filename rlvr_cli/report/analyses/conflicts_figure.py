"""The picture of `rlvr analyze conflicts`: shares over rollouts, pushes, spans and tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlvr_cli.analysis.conflicts import Tally, summary
from rlvr_cli.report.charts.text import shortened
from rlvr_cli.report.figure import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHARES = {
    "conflict_share": "in conflict",
    "conflict_prefix_share": "in prefixes",
    "conflict_suffix_share": "in suffixes",
}
_PUSHES = {
    "negative_push_share": "of the pushes, downwards",
    "penalised_correct_share": "of the tokens, net downwards",
    "negative_net_share": "of shared prefixes, net downwards",
}
MOST_TEXT = 16
# A span length with a bar of its own; longer ones are gathered in as many bars.
MOST_BARS = 40


def conflicts_figure(tallies: Mapping[int, Tally], total: Tally, tokens: Sequence[Mapping[str, Any]]) -> Figure:
    """Must be called inside ``report.figure.style()``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 6.8), layout="constrained")
    (left, right), (below, beside) = figure.subplots(2, 2)
    _lines(left, tallies, _SHARES, "share of all tokens", 0)
    _lines(right, tallies, _PUSHES, "what GRPO does to conflict tokens (GTPO: 0 downwards)", len(_SHARES))
    right.axhline(0.5, color="#7F7F7F", linewidth=0.8, zorder=0.9)
    right.set_ylim(-0.02, 1.02)
    _spans(below, total)
    _bars(beside, tokens)
    return figure


def _lines(axes: Any, tallies: Mapping[int, Tally], names: Mapping[str, str], title: str, first: int) -> None:
    axes.set_title(title)
    axes.set_xlabel("rollout, from 0")
    for place, (name, label) in enumerate(names.items(), start=first):
        points = [(number, value) for number, one in tallies.items() if (value := summary(one)[name]) is not None]
        axes.plot([x for x, _ in points], [y for _, y in points], "o-", markersize=3, color=COLOURS[place], label=label)
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=8)


def _spans(axes: Any, total: Tally) -> None:
    axes.set_title("length of the runs of conflict tokens")
    axes.set_xlabel("tokens")
    axes.set_ylabel("completions")
    longest = max(total.prefix_spans | total.suffix_spans, default=1)
    width = -(-longest // MOST_BARS)
    for place, (label, counts) in enumerate((("prefix", total.prefix_spans), ("suffix", total.suffix_spans))):
        bars: Counter[int] = Counter()
        for length, count in counts.items():
            bars[(length - 1) // width] += count
        at = [(bar + (0.3 + 0.4 * place)) * width + (0.5 if width == 1 else 1) for bar in bars]
        axes.bar(at, list(bars.values()), width=0.4 * width, color=COLOURS[place + 1], label=label)
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
