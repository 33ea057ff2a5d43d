"""The figure of `rlvr analyze ratio`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlvr_cli.analysis.gradient_expectation import log_ratio
from rlvr_cli.analysis.ratio import QUANTILES, Plane, Ratios, entropy_bounds
from rlvr_cli.results.figure import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def ratio_figure(before: Ratios, after: Sequence[Ratios], where: Plane, vocabulary: int) -> Figure:
    """Six panels. Must be called inside ``results.figure.style()``."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14.0, 7.6), layout="constrained")
    (boxes, spreads, clipped), (gradients, shares, dominance) = figure.subplots(2, 3)
    shades = [colormaps["viridis_r"](0.15 + 0.8 * index / max(len(after) - 1, 1)) for index in range(len(after))]
    names = [f"{of.low:.2g} to {of.high:.2g}" for of in after[-1].bins]
    _boxes(boxes, after[-1], names)
    _spreads(spreads, after, shades)
    _plane(clipped, where, vocabulary, after[-1].updates)
    _by_bin(gradients, after, shades, names)
    _shares(shares, after, shades, names)
    _dominance(dominance, before, after)
    return figure


def _boxes(axes: Any, last: Ratios, names: list[str]) -> None:
    at = {share: index for index, share in enumerate(QUANTILES)}
    boxes = [
        {
            "med": of.quantiles[at[0.5]],
            "q1": of.quantiles[at[0.25]],
            "q3": of.quantiles[at[0.75]],
            "whislo": of.quantiles[at[0.01]],
            "whishi": of.quantiles[at[0.99]],
        }
        for of in last.bins
        if of.quantiles is not None
    ]
    places = [index for index, of in enumerate(last.bins) if of.quantiles is not None]
    axes.bxp(boxes, positions=places, showfliers=False, medianprops={"color": COLOURS[1]})
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(r"$\pi_{\mathrm{old}}$")
    axes.set_ylabel(r"ratio  $r = \pi\,/\,\pi_{\mathrm{old}}$")
    axes.set_title(f"the ratio after {last.updates} updates")


def _spreads(axes: Any, after: Sequence[Ratios], shades: Sequence[Any]) -> None:
    for of, shade in zip(after, shades, strict=True):
        slope = "" if of.exponent.exponent is None else f" (slope {of.exponent.exponent:.2f})"
        axes.plot(
            of.exponent.rest, of.exponent.spread, marker="o", markersize=3, color=shade, label=f"{of.updates}{slope}"
        )
    last = after[-1].exponent
    if last.rest:
        start, end = min(last.rest), max(last.rest)
        top = max(last.spread)
        axes.plot([start, end], [top * (start / end) ** 2, top], ":", color="#7F7F7F")
        axes.set_ylim(min(min(of.exponent.spread, default=top) for of in after) / 2, 2 * top)
    # Without a point there is nothing that a logarithmic scale could show.
    if any(of.exponent.rest for of in after):
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel(r"$1 - \pi_{\mathrm{old}}$")
    axes.set_ylabel("standard deviation of the ratio")
    axes.set_title("spread, and lemma 1 (dotted)")
    axes.legend(title="updates")


def _plane(axes: Any, where: Plane, vocabulary: int, updates: int) -> None:
    line = torch.linspace(0.002, 0.998, 300, dtype=torch.float64)
    for bound in entropy_bounds(line, vocabulary):
        axes.plot(line, bound, color="#7F7F7F", linewidth=0.9)
    probabilities, entropies = torch.tensor(where.probabilities), torch.tensor(where.entropies)
    cut = torch.tensor(where.clipped, dtype=torch.bool)
    look: dict[str, Any] = {"rasterized": True}
    axes.scatter(
        probabilities[~cut], entropies[~cut], s=6, alpha=0.4, linewidths=0, color=COLOURS[0], label="kept", **look
    )
    axes.scatter(
        probabilities[cut], entropies[cut], s=18, marker="x", linewidths=0.9, color=COLOURS[1], label="clipped", **look
    )
    axes.set_xlabel(r"$\pi_{\mathrm{old}}$")
    axes.set_ylabel("entropy (nats)")
    axes.set_title(f"clipped after {updates} updates")
    axes.legend()


def _by_bin(axes: Any, after: Sequence[Ratios], shades: Sequence[Any], names: list[str]) -> None:
    for of, shade in zip(after, shades, strict=True):
        for which, look in (("magnitude", "-o"), ("expected_magnitude", "--")):
            known = [(index, getattr(part, which)) for index, part in enumerate(of.bins) if getattr(part, which)]
            label = str(of.updates) if which == "magnitude" else None
            axes.plot([x for x, _ in known], [y for _, y in known], look, markersize=3, color=shade, label=label)
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(r"$\pi_{\mathrm{old}}$")
    axes.set_ylabel(r"mean $|G|$")
    axes.set_title("gradient, measured and by proposition 1 (dashed)")
    axes.legend(title="updates")


def _shares(axes: Any, after: Sequence[Ratios], shades: Sequence[Any], names: list[str]) -> None:
    width = 0.8 / len(after)
    for index, (of, shade) in enumerate(zip(after, shades, strict=True)):
        places = [place - 0.4 + (index + 0.5) * width for place in range(len(names))]
        axes.bar(places, [100 * (part.clipped or 0.0) for part in of.bins], 0.9 * width, color=shade, label=of.updates)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(r"$\pi_{\mathrm{old}}$")
    axes.set_ylabel("of the tokens with an advantage (%)")
    axes.set_title("clipped tokens")
    axes.legend(title="updates")


def _dominance(axes: Any, before: Ratios, after: Sequence[Ratios]) -> None:
    looks = {
        "magnitude": ("mean |G|", "-o", COLOURS[0]),
        "expected_magnitude": ("mean |G|, proposition 1", "--", COLOURS[0]),
        "signed": ("|mean G|", "-s", COLOURS[1]),
        "expected_signed": ("|mean G|, proposition 1", "--", COLOURS[1]),
    }
    highest = 0.0
    for which, (label, look, colour) in looks.items():
        values = [
            (of.updates, log_ratio(getattr(of.bins[0], which), getattr(of.bins[-1], which))) for of in (before, *after)
        ]
        known = [(updates, value) for updates, value in values if value is not None]
        axes.plot([x for x, _ in known], [y for _, y in known], look, markersize=4, color=colour, label=label)
        if which != "expected_signed":
            highest = max([highest, *(value for _, value in known)])
    # Where nothing is clipped, what is left of the signed expectation is nothing over still less.
    axes.set_ylim(top=2 * highest + 1)
    axes.axhline(0, color="#7F7F7F", linewidth=0.8)
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks([0, *(of.updates for of in after)], ["0", *(str(of.updates) for of in after)])
    axes.set_xlabel("updates since the rollout")
    axes.set_ylabel("log ratio, low over high")
    axes.set_title("who dominates")
    axes.legend()
