"""The figure of `rlvr analyze probability`: norms, changes and directions by the tokens' probability."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlvr_cli.analysis.probability import ByProbability
from rlvr_cli.results.figure import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BY = {"all": "all tokens", "low": "lowest group", "high": "highest group"}


def probability_figure(found: ByProbability) -> Figure:
    """Four panels. Must be called inside ``results.figure.style()``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 7.4), layout="constrained")
    (tokens, groups), (changes, directions) = figure.subplots(2, 2)
    names = [f"{group.low:.2g} to {group.high:.2g}" for group in found.groups]
    _tokens(tokens, found)
    _groups(groups, found, names)
    _changes(changes, found, names)
    _directions(directions, found, names)
    return figure


def _tokens(axes: Any, found: ByProbability) -> None:
    of, at_logits = found.sampled, found.sampled_at_logits
    look: dict[str, Any] = {"alpha": 0.6, "linewidths": 0, "rasterized": True}
    axes.scatter(of.rest, of.norms, s=9, color=COLOURS[0], **look)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(r"$1 - \pi$")
    axes.set_ylabel(r"$\|\nabla_\theta \log \pi\|$", color=COLOURS[0])
    said = "" if of.pearson is None or of.spearman is None else f" (r = {of.pearson:.2f}, ranks {of.spearman:.2f})"
    axes.set_title(f"gradient of single tokens{said}")
    logits = axes.twinx()
    logits.spines["right"].set_visible(True)
    logits.grid(visible=False)
    logits.scatter(at_logits.rest, at_logits.norms, s=5, color="#7F7F7F", **look)
    for slope in (1.0, math.sqrt(2)):
        logits.plot([0, 1], [0, slope], color="#7F7F7F", linewidth=0.7)
    # Below the other cloud, so that both are seen.
    logits.set_ylim(0, 3)
    logits.set_ylabel("at the logits, and its bounds", color="#7F7F7F")


def _groups(axes: Any, found: ByProbability, names: list[str]) -> None:
    places = range(len(names))
    axes.bar([place - 0.2 for place in places], [group.norm for group in found.groups], 0.4, color=COLOURS[0])
    axes.set_xticks(list(places), names)
    axes.set_xlabel(r"$\pi_{\mathrm{old}}$")
    axes.set_ylabel("norm of the group's gradient", color=COLOURS[0])
    axes.set_title("the groups' parts of the update")
    shares = axes.twinx()
    shares.spines["right"].set_visible(True)
    shares.grid(visible=False)
    shares.bar([place + 0.2 for place in places], [100 * group.share for group in found.groups], 0.4, color=COLOURS[4])
    shares.set_ylabel("share of the tokens (%)", color=COLOURS[4])


def _changes(axes: Any, found: ByProbability, names: list[str]) -> None:
    width = 0.8 / len(found.changes)
    for index, change in enumerate(found.changes):
        places = [place - 0.4 + (index + 0.5) * width for place in range(len(names))]
        heights = [value or 0.0 for value in change.size]
        axes.bar(places, heights, 0.9 * width, color=COLOURS[index], label=_BY[change.by])
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.35)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(r"$\pi_{\mathrm{old}}$")
    axes.set_ylabel(r"mean $|\Delta \pi|$")
    axes.set_title("what one step moves")
    axes.legend(title="a step made by", loc="upper center", ncols=len(found.changes))


def _directions(axes: Any, found: ByProbability, names: list[str]) -> None:
    for index, of in enumerate(found.directions):
        known = [(place, 100 * value) for place, value in enumerate(of.positive) if value is not None]
        look = {"color": COLOURS[index % len(COLOURS)], "marker": "os^vD<>p"[index % 8], "markersize": 5}
        axes.plot([place for place, _ in known], [value for _, value in known], label=of.method, **look)
    axes.axhline(50, color="#7F7F7F", linewidth=0.8)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(0, 102)
    axes.set_xlabel(r"$\pi_{\mathrm{old}}$")
    axes.set_ylabel("of the tokens with A > 0 (%)")
    axes.set_title("tokens that rise in one step")
    axes.legend()
