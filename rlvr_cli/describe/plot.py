"""`rlvr methods plot`: what to draw, checked before matplotlib is loaded, and the picture of the methods' weights."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_cli.charts.figure import COLOURS, check_path, style, write_figure
from rlvr_cli.core.errors import UserError
from rlvr_cli.describe.named import policy_config
from rlvr_cli.describe.weights import RATIOS, SPREAD, Curves, WeightCurve, weight_curves
from rlvr_cli.methods.method import Method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OLD_PROBS = (0.1, 0.5, 0.9)
MOST_OLD_PROBS = 5
SIGNS = {-1: "A < 0", 1: "A > 0"}
KINDS = {"on_log_prob": "weight on grad log π", "on_prob": "weight on grad π"}
# Where a ratio lies left and right of the trust region, by sign of the advantage.
_CORNERS = {-1: ("LN", "HN"), 1: ("LP", "HP")}
_TICKS = {0.25: "1/4", 0.5: "1/2", 1.0: "1", 2.0: "2", 4.0: "4"}
_REGION: dict[str, Any] = {"facecolor": "#9E9E9E", "alpha": 0.22, "linewidth": 0}
_BEYOND: dict[str, Any] = {"facecolor": "none", "edgecolor": "#C8C8C8", "hatch": "////", "linewidth": 0}
_UNCLIPPED: dict[str, Any] = {"color": "#555555", "linewidth": 1.0, "linestyle": (0, (1, 2)), "zorder": 1.5}
# Weights that grow without end leave the panel at the top, at this many times the unclipped weight at ratio 1.
_TALLEST = 4.0


@dataclass(frozen=True)
class PlotRequest:
    """Methods in the order of drawing, where to, at which old probabilities, and ACPO's assumed spread."""

    configs: tuple[Method, ...]
    out: Path
    old_probs: tuple[float, ...]
    spread: float

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(config.name for config in self.configs)


def plot_request(names: Sequence[str], out: Path | None, old_probs: Sequence[str], spread: float | None) -> PlotRequest:
    """The request of a command line.

    `--old-prob 0.1 0.5 0.9` leaves 0.5 and 0.9 among the names, since an option takes one value; they are taken as
    what they are meant to be.

    Raises:
        UserError: an unknown method, more than can be told apart, a value out of its range, or a file that cannot be.
    """
    numbers = [word for word in names if old_probs and _is_number(word)]
    methods = [word for word in names if word not in numbers]
    values = [part for text in (*old_probs, *numbers) for part in text.split(",") if part.strip()]
    configs = {config.name: config for config in map(policy_config, methods)}
    if not configs:
        raise UserError("name at least one method to draw, as in `rlvr methods plot dgpo gppo cispo grpo`.")
    lines = sum(2 if _draws_two_lines(config) else 1 for config in configs.values())
    if lines > len(COLOURS):
        raise UserError(
            f"{lines} curves cannot be told apart in one picture; draw {len(COLOURS)} at most. (A method whose weight "
            "depends on entropy takes two.)"
        )
    path = out or Path(f"weights-{'-'.join(configs)}.png")
    check_path(path)
    return PlotRequest(tuple(configs.values()), path, _probabilities(values), _spread(spread))


def _draws_two_lines(config: Method) -> bool:
    return getattr(config.policy_loss, "eps_high_entropy", None) is not None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _probabilities(values: Sequence[str]) -> tuple[float, ...]:
    found = []
    for text in values:
        value = float(text) if _is_number(text) else math.nan
        if not 0 < value <= 1:
            raise UserError(f"--old-prob {text}: must be a probability, above 0 and at most 1, as in 0.1,0.5,0.9.")
        found.append(value)
    if len(set(found)) > MOST_OLD_PROBS:
        raise UserError(
            f"--old-prob: {len(set(found))} probabilities are a row of panels each; {MOST_OLD_PROBS} at most."
        )
    return tuple(dict.fromkeys(found)) or OLD_PROBS


def _spread(value: float | None) -> float:
    if value is None:
        return SPREAD
    if not 0 <= value < 1:
        raise UserError(f"--spread {value:g}: must be at least 0 and below 1; ratios spread by it around 1.")
    return value


def plot_weights(request: PlotRequest) -> Curves:
    """Write the picture; what was drawn comes back."""
    # The normaliser has no part in the picture, so that any length does.
    methods = [config.bound(1) for config in request.configs]
    drawn = weight_curves(methods, request.old_probs, spread=request.spread)
    with style():
        write_figure(weight_figure(drawn), request.out)
    return drawn


def curves_as_dict(request: PlotRequest, drawn: Curves) -> dict[str, Any]:
    """The file, what its curves assume, and their numbers."""
    return {
        "file": str(request.out),
        "methods": list(request.names),
        "old_probs": list(request.old_probs),
        "notes": list(drawn.notes),
        "curves": [
            {
                "label": curve.label,
                "sign": curve.sign,
                "old_prob": curve.old_prob,
                "trust_region": None if curve.region is None else list(curve.region),
                "ratio": _rounded(curve.ratios.tolist()),
                "on_grad_log_prob": _rounded(curve.on_log_prob.tolist()),
                "on_grad_prob": _rounded(curve.on_prob.tolist()),
            }
            for curve in drawn.curves
        ],
    }


def _rounded(values: list[float]) -> list[float]:
    return [float(f"{value:.8g}") for value in values]


def weight_figure(drawn: Curves) -> Figure:
    """One panel for each sign and kind of weight, a row of them for each old probability; one line a curve's label.

    Must be called inside ``charts.figure.style()``.
    """
    from matplotlib.figure import Figure

    old_probs = list(dict.fromkeys(curve.old_prob for curve in drawn.curves))
    labels = list(dict.fromkeys(curve.label for curve in drawn.curves))
    alone = len(old_probs) == 1
    # One probability: kinds below one another. Several: a row each, all four panels next to one another.
    rows, columns = (2, 2) if alone else (len(old_probs), 4)
    notes = _wrapped(drawn.notes, 120 if alone else 200)
    width, height = (8.6, 6.8) if alone else (13.0, 2.4 * rows + 1.3)
    figure = Figure(figsize=(width, height + 0.16 * len(notes)), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for row, old_prob in enumerate(old_probs):
        for k, kind in enumerate(KINDS):
            pair = grid[k] if alone else grid[row, 2 * k : 2 * k + 2]
            of_row = [curve for curve in drawn.curves if curve.old_prob == old_prob]
            for axes, sign in zip(pair, SIGNS, strict=True):
                _draw(axes, [curve for curve in of_row if curve.sign == sign], kind, labels, old_prob, sign)
                axes.set_ylim(*_height(of_row, kind, old_prob))
                if alone or row == 0:
                    axes.set_title(f"{KINDS[kind]},  {SIGNS[sign]}")
        if not alone:
            grid[row, 0].set_ylabel(f"p = {old_prob:g}", fontsize=10, fontweight="bold")
    for axes in grid[-1]:
        axes.set_xlabel(r"ratio  $r = \pi\,/\,\pi_{\mathrm{old}}$")
    where = f"p = {old_probs[0]:g}" if alone else "p of each row"
    title = f"Token weight over the ratio;  old probability {where}"
    _legend(figure, drawn.curves, labels, title, columns=7 if alone else 10)
    if notes:
        figure.supxlabel("\n".join(notes), fontsize=7.5, color="#444444", x=0.01, ha="left")
    return figure


def _draw(
    axes: Any, curves: Sequence[WeightCurve], kind: str, labels: Sequence[str], old_prob: float, sign: int
) -> None:
    axes.set_xscale("log")
    axes.set_xlim(*RATIOS)
    axes.set_xticks(list(_TICKS), list(_TICKS.values()))
    axes.minorticks_off()
    if not curves:
        axes.text(0.5, 0.5, "no such tokens", transform=axes.transAxes, ha="center", color="#777777")
        return
    regions = list(dict.fromkeys(curve.region for curve in curves if curve.region is not None))
    for low, high in regions:
        axes.axvspan(max(low, RATIOS[0]), min(high, RATIOS[1]), zorder=0.5, **_REGION)
    possible = min(1 / old_prob, RATIOS[1])
    if possible < RATIOS[1]:
        axes.axvspan(possible, RATIOS[1], zorder=0.4, **_BEYOND)
    ends = [RATIOS[0] + (possible - RATIOS[0]) * step / 100 for step in range(101)]
    axes.plot(ends, [end if kind == "on_log_prob" else 1 / old_prob for end in ends], **_UNCLIPPED)
    for curve in curves:
        axes.plot(curve.ratios, getattr(curve, kind), **_line(labels, curve.label))
    if regions:
        _name_corners(axes, min(low for low, _ in regions), max(high for _, high in regions), possible, sign)


def _name_corners(axes: Any, low: float, high: float, possible: float, sign: int) -> None:
    spans = ((RATIOS[0], low), (high, possible))
    for (start, end), name in zip(spans, _CORNERS[sign], strict=True):
        if start < end / 1.2:
            axes.text(
                math.sqrt(start * end),
                0.98,
                name,
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="top",
                color="#777777",
                fontsize=8,
            )


def _height(curves: Sequence[WeightCurve], kind: str, old_prob: float) -> tuple[float, float]:
    """Limits that both signs share."""
    unclipped = 1.0 if kind == "on_log_prob" else 1 / old_prob
    tallest = max(float(getattr(curve, kind).max()) for curve in curves)
    top = max(unclipped, min(tallest, _TALLEST * unclipped))
    return -0.04 * top, 1.06 * top


def _line(labels: Sequence[str], label: str) -> dict[str, Any]:
    """Earlier lines are wider: where several coincide, each still shows at the edges of the next."""
    position, last = labels.index(label), len(labels) - 1
    width = 1.8 if last == 0 else 1.5 + 3.0 * (last - position) / last
    return {"color": COLOURS[position], "linewidth": width, "solid_capstyle": "butt", "zorder": 2 + position / 100}


def _legend(figure: Figure, curves: Sequence[WeightCurve], labels: Sequence[str], title: str, *, columns: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Line2D([], [], label=label, **_line(labels, label)) for label in labels]
    handles.append(Line2D([], [], label="never clipped", **_UNCLIPPED))
    regions = list(dict.fromkeys(curve.region for curve in curves if curve.region is not None))
    if regions:
        handles.append(Patch(label=f"trust region{_extent(regions)}", **_REGION))
    if any(1 / curve.old_prob < RATIOS[1] for curve in curves):
        handles.append(Patch(label="π would exceed 1", **_BEYOND))
    # The title of the legend is that of the figure: the layout would put a title of the figure's own on top of it.
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=min(len(handles), columns),
        fontsize=9,
        title=title,
        title_fontsize=11.5,
        columnspacing=1.4,
        handlelength=1.7,
    )


def _extent(regions: Sequence[tuple[float, float]]) -> str:
    if len(regions) > 1:
        return "s"
    low, high = regions[0]
    return f" {max(low, 0):g} to {'∞' if math.isinf(high) else f'{high:g}'}"


def _wrapped(notes: Sequence[str], width: int) -> list[str]:
    return [line for note in notes for line in textwrap.wrap(note, width, subsequent_indent="    ")]
