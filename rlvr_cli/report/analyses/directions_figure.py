"""The figure of `rlvr analyze directions`: norms and angles by group, and angles matrix by matrix."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rlvr_cli.analysis.direction_groups import CLIPPING, SIGNS, TOKENS
from rlvr_cli.report.analyses.directions_found import Found, own_norm
from rlvr_cli.results.figure import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FULL: dict[str, Any] = {"color": "#7F7F7F", "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 0.9}
_LAYER = re.compile(r"\.(\d+)\.")


def directions_figure(found: Found) -> Figure:
    """A column each for tokens, signs and clipping. Must be called inside ``results.figure.style()``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 6.8), layout="constrained")
    grid = figure.subplots(2, 3, sharey="row", width_ratios=(3, 2, 5))
    for column, kind in enumerate((TOKENS, SIGNS, CLIPPING)):
        _draw_norms(grid[0, column], found, kind)
        _draw_angles(grid[1, column], found, kind)
    grid[0, 0].set_ylabel("norm, % of the full update's")
    grid[1, 0].set_ylabel("mean principal angle to the full update, degrees")
    return figure


def _draw_norms(axes: Any, found: Found, kind: str) -> None:
    groups = [(group, compared) for group, compared in found.groups if group.kind == kind]
    for place, (group, compared) in enumerate(groups):
        if compared is None:
            continue
        axes.bar(place, 100 * compared.norm, 0.7, color=COLOURS[place])
        own = own_norm(group, compared, found.learned)
        tallest = max(compared.norm, own or 0.0)
        if own is not None:
            axes.plot(place, 100 * own, "o", markerfacecolor="none", markeredgecolor=COLOURS[place], markersize=6)
        if compared.angle is not None:
            axes.annotate(
                f"{compared.angle:.1f}\u00b0",
                (place, 100 * tallest),
                xytext=(0, 5),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
    axes.axhline(100, **_FULL)
    if any(compared is not None for _, compared in groups):
        axes.set_yscale("log")
    axes.margins(y=0.15)
    axes.set_xticks(range(len(groups)), [group.what.replace(" of ", "\nof ") for group, _ in groups], fontsize=8)
    axes.grid(axis="x", visible=False)
    axes.set_title(kind)


def _draw_angles(axes: Any, found: Found, kind: str) -> None:
    names = list(found.reference.k)
    groups = [(group, compared) for group, compared in found.groups if group.kind == kind]
    for place, (_, compared) in enumerate(groups):
        if compared is not None and compared.angles:
            at = [names.index(name) for name in compared.angles]
            axes.plot(at, list(compared.angles.values()), "o-", markersize=3, color=COLOURS[place])
    if found.random_angle is not None:
        axes.axhline(found.random_angle, **_FULL)
    firsts: dict[str, int] = {}
    for index, name in enumerate(names):
        layer = _LAYER.search(name)
        firsts.setdefault(layer[1] if layer else name, index)
    # So many layers as can be read.
    every = max(1, len(firsts) // 8)
    axes.set_xticks(list(firsts.values())[::every], list(firsts)[::every])
    axes.set_xlabel("layer, its matrices in their order")
    axes.set_ylim(0, 92)
