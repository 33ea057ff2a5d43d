"""The figure of `rlvr analyze weights`: tokens, weights on grad pi by sign of the advantage, bias by region."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlvr_cli.analysis.method_difference import REGIONS
from rlvr_cli.analysis.method_step import Scored
from rlvr_cli.report.weight_curves import effective_weight
from rlvr_cli.results.figure import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rlvr_cli.report.analyses.weights_found import MethodFound

_BOUND: dict[str, Any] = {"color": "#7F7F7F", "linewidth": 0.8, "linestyle": (0, (4, 3)), "zorder": 0.9}
# An SVG with an element for every token would be larger than the rollout.
_DOTS: dict[str, Any] = {"linewidths": 0, "rasterized": True}
_POINTS = 400
# Most tokens drawn inside the bounds, and as many outside: there may be millions.
_MOST = 10_000


def weights_figure(found: Sequence[MethodFound], scored: Scored, eps_low: float, eps_high: float) -> Figure:
    """Four panels. Must be called inside ``results.figure.style()``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 7.4), layout="constrained")
    (tokens, negative), (positive, bias) = figure.subplots(2, 2)
    bounds = (1 - eps_low, 1 + eps_high)
    span = _span(scored, bounds)
    shown = _thinned(found[0])
    _draw_tokens(tokens, found[0], shown, bounds)
    _draw_weights(negative, found, shown, -1, span, bounds)
    _draw_weights(positive, found, shown, 1, span, bounds)
    _draw_bias(bias, found)
    handles, labels = bias.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 8))
    return figure


def _span(scored: Scored, bounds: tuple[float, float]) -> tuple[float, float]:
    """Ratios to draw: those of the tokens, and both bounds with some room."""
    valid = scored.rollout.mask.bool()
    ratios = (scored.log_probs - scored.old_log_probs)[valid].exp()
    low, high = (float(ratios.min()), float(ratios.max())) if ratios.numel() else bounds
    return min(low, bounds[0] / 1.5) / 1.05, max(high, bounds[1] * 1.5) * 1.05


def _thinned(first: MethodFound) -> Tensor:
    """(N, T) the tokens to draw."""
    inside = first.weights.region("M")
    shown = torch.zeros_like(inside)
    for chosen in (inside, first.weights.learned & ~inside):
        places = chosen.nonzero()
        kept = places[:: max(1, math.ceil(len(places) / _MOST))]
        shown[kept[:, 0], kept[:, 1]] = True
    return shown


def _draw_tokens(axes: Any, first: MethodFound, shown: Tensor, bounds: tuple[float, float]) -> None:
    of = first.weights
    axes.set_title("tokens with an advantage")
    if not bool(of.learned.any()):
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color="#777777")
        return
    for sign, colour, name in ((1, COLOURS[7], "A > 0"), (-1, COLOURS[6], "A < 0")):
        chosen = shown & of.learned & ((of.true > 0) if sign > 0 else (of.true < 0))
        axes.scatter(of.old_probs[chosen], of.ratio[chosen], s=7, alpha=0.6, color=colour, label=name, **_DOTS)
    for bound in bounds:
        axes.axhline(bound, **_BOUND)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(r"old probability  $\pi_{\mathrm{old}}$")
    axes.set_ylabel(r"ratio  $r = \pi\,/\,\pi_{\mathrm{old}}$")
    axes.legend(loc="upper left", markerscale=2)


def _draw_weights(
    axes: Any,
    found: Sequence[MethodFound],
    shown: Tensor,
    sign: int,
    span: tuple[float, float],
    bounds: tuple[float, float],
) -> None:
    grid = torch.logspace(math.log10(span[0]), math.log10(span[1]), _POINTS, dtype=torch.float64)
    for place, of in enumerate(found):
        weights, colour = of.weights, COLOURS[place]
        if sign in of.method.advantage.signs:
            # So unlikely a token that its probability stays below 1 at every ratio drawn.
            line = effective_weight(of.method, grid, min(0.1, 0.9 / span[1]), sign)[0] / grid
            # Earlier lines are wider: where several coincide, each still shows at the edges of the next.
            width = 1.2 + 3.0 * (len(found) - 1 - place) / max(len(found) - 1, 1)
            axes.plot(grid, line, color=colour, linewidth=width, alpha=0.55, zorder=2 + place / 100)
        chosen = shown & weights.learned & ((weights.true > 0) if sign > 0 else (weights.true < 0))
        axes.scatter(
            weights.ratio[chosen], weights.relative[chosen], s=9, color=colour, zorder=3 + place / 100, **_DOTS
        )
    for bound in bounds:
        axes.axvline(bound, **_BOUND)
    axes.set_xscale("log")
    axes.set_xlim(*span)
    _linear_to_1(axes)
    axes.set_xlabel(r"ratio  $r = \pi\,/\,\pi_{\mathrm{old}}$")
    axes.set_ylabel(r"weight on $\nabla\pi$ times $\pi_{\mathrm{old}}$  $= F / r$")
    axes.set_title(f"A {'<' if sign < 0 else '>'} 0")


def _draw_bias(axes: Any, found: Sequence[MethodFound]) -> None:
    width = 0.8 / len(found)
    for place, of in enumerate(found):
        at = [column - 0.4 + (place + 0.5) * width for column in range(len(REGIONS))]
        values = [of.bias(name) for name in REGIONS]
        heights = [0.0 if value is None else value for value in values]
        axes.bar(at, heights, width, color=COLOURS[place], label=of.method.name)
        # A bar of height 0 is a finding; where no token lies there is none.
        for x, value in zip(at, values, strict=True):
            if value is not None:
                axes.plot([x - width / 2, x + width / 2], [value, value], color=COLOURS[place], linewidth=1.5)
    for column, name in enumerate(REGIONS):
        if all(of.bias(name) is None for of in found):
            axes.text(column, 0.02, "no\ntokens", ha="center", va="bottom", color="#777777", fontsize=8)
    axes.set_xticks(range(len(REGIONS)), REGIONS)
    axes.grid(axis="x", visible=False)
    _linear_to_1(axes)
    axes.set_ylabel("relative to the true gradient there")
    measured = "gradients" if found[0].gradient is not None else "coefficients"
    axes.set_title(f"bias to the true policy gradient ({measured})")


def _linear_to_1(axes: Any) -> None:
    """Both are to be seen: what lies between 0 and 1, and how far up a divergence goes."""
    top = max(axes.get_ylim()[1], 1.5)
    decades = int(math.log10(top))
    # The linear part keeps a third of the height.
    axes.set_yscale("symlog", linthresh=1.0, linscale=max(1.0, decades / 2))
    powers = range(1, decades + 1, max(1, math.ceil(decades / 5)))
    ticks = {0.0: "0", 0.25: "0.25", 0.5: "0.5", 0.75: "0.75", 1.0: "1"}
    if decades < 2:
        ticks |= {2.0: "2", 5.0: "5"}
    ticks |= {10.0**power: "10" if power == 1 else f"$10^{{{power}}}$" for power in powers}
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.set_ylim(-0.05, top)
