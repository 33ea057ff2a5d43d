"""The picture of `rlvr methods compare`: both coefficients of each token, and their difference over the ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlvr_cli.analysis.method_difference import REGIONS, apply_method
from rlvr_cli.analysis.method_step import Scored
from rlvr_cli.methods.method import Method
from rlvr_cli.results.figure import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Told apart by shape too, where they lie on one another.
_LOOKS = {
    "LN": (COLOURS[0], "v", 22),
    "HP": (COLOURS[1], "^", 22),
    "LP": (COLOURS[2], "<", 22),
    "HN": (COLOURS[3], ">", 22),
    "M": ("#8C8C8C", "o", 6),
}


def difference_figure(first: Method, second: Method, scored: Scored) -> Figure:
    """One dot a token, by region. Must be called inside ``results.figure.style()``."""
    from matplotlib.figure import Figure

    a, b = apply_method(first, scored), apply_method(second, scored)
    ratios = (scored.log_probs - scored.old_log_probs).exp()
    figure = Figure(figsize=(10.0, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    # The many tokens inside the region go below the few outside.
    for region in reversed(REGIONS):
        chosen = getattr(a.regions, region)
        if not bool(chosen.any()):
            continue
        colour, marker, size = _LOOKS[region]
        look: dict[str, Any] = {"color": colour, "marker": marker, "s": size, "alpha": 0.7, "linewidths": 0}
        # An SVG with an element for every token would be larger than the rollout.
        look["rasterized"] = True
        left.scatter(b.coefficients[chosen], a.coefficients[chosen], label=region, **look)
        right.scatter(ratios[chosen], (a.coefficients - b.coefficients)[chosen], label=region, **look)
    ends = torch.stack([a.coefficients, b.coefficients])
    span = [float(ends.min()), float(ends.max())]
    left.plot(span, span, color="#7F7F7F", linewidth=0.8, zorder=0.9)
    left.set_xlabel(f"coefficient of {second.name}")
    left.set_ylabel(f"coefficient of {first.name}")
    left.set_title("what multiplies grad log π of each token")
    right.set_xscale("log")
    right.set_xlabel(r"ratio  $r = \pi\,/\,\pi_{\mathrm{old}}$")
    right.set_ylabel(f"{first.name} minus {second.name}")
    right.set_title("their difference over the ratio")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(
        handles[::-1], labels[::-1], loc="outside lower center", ncols=len(labels), title=f"region of {first.name}"
    )
    return figure
