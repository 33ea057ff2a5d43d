"""Validation (before altair is loaded) and chart of `rlvr methods plot`: the methods' weights over the ratio."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_cli.charts.figure import COLOURS, MUTED, check_path, write_chart
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.lazy import alt
from rlvr_cli.describe.named import policy_config
from rlvr_cli.describe.weights import RATIOS, SPREAD, Curves, WeightCurve, weight_curves
from rlvr_cli.methods.method import Method

if TYPE_CHECKING:
    import pandas as pd

OLD_PROBS = (0.1, 0.5, 0.9)
MOST_OLD_PROBS = 5
SIGNS = {-1: "A < 0", 1: "A > 0"}
KINDS = {"on_log_prob": "weight on grad log π", "on_prob": "weight on grad π"}
# Regions left and right of the trust region, by sign of the advantage.
_CORNERS = {-1: ("LN", "HN"), 1: ("LP", "HP")}
_TICKS = {0.25: "1/4", 0.5: "1/2", 1.0: "1", 2.0: "2", 4.0: "4"}
# Panels are cut at this many times the unclipped weight at ratio 1.
_TALLEST = 4.0


@dataclass(frozen=True)
class PlotRequest:
    """Methods in drawing order, output path, old probabilities, and ACPO's assumed spread."""

    configs: tuple[Method, ...]
    out: Path
    old_probs: tuple[float, ...]
    spread: float

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(config.name for config in self.configs)


def plot_request(names: Sequence[str], out: Path | None, old_probs: Sequence[str], spread: float | None) -> PlotRequest:
    """Validate the arguments of the command.

    Raises:
        UserError: an unknown method, too many curves, a value out of range, or an invalid path.
    """
    values = [number for text in old_probs for number in text.split(",") if number.strip()]
    configs = {config.name: config for config in map(policy_config, names)}
    if not configs:
        raise UserError("no method to draw. Name one or more, as in `rlvr methods plot dgpo gppo cispo grpo`.")
    lines = sum(1 + config.policy_loss.needs_entropies for config in configs.values())
    if lines > len(COLOURS):
        raise UserError(
            f"{lines} curves in one figure; at most {len(COLOURS)} are allowed (a method whose weight depends on "
            "entropy has two). Remove methods."
        )
    path = out or Path(f"weights-{'-'.join(configs)}.png")
    check_path(path)
    spread = SPREAD if spread is None else spread
    if not 0 <= spread < 1:
        raise UserError(f"--spread {spread:g}: must be at least 0 and below 1.")
    return PlotRequest(tuple(configs.values()), path, _parse_probabilities(values), spread)


def _parse_probabilities(values: Sequence[str]) -> tuple[float, ...]:
    probabilities = []
    for text in values:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= 1:
            raise UserError(f"--old-prob {text}: must be a probability, above 0 and at most 1, as in 0.1,0.5,0.9.")
        probabilities.append(value)
    if len(set(probabilities)) > MOST_OLD_PROBS:
        raise UserError(f"--old-prob: must be at most {MOST_OLD_PROBS} probabilities; got {len(set(probabilities))}.")
    return tuple(dict.fromkeys(probabilities)) or OLD_PROBS


def plot_weights(request: PlotRequest) -> Curves:
    # Any length is valid: the normaliser is not drawn.
    methods = [config.with_max_length(1) for config in request.configs]
    drawn = weight_curves(methods, request.old_probs, spread=request.spread)
    write_chart(weight_chart(drawn), request.out)
    return drawn


def curves_as_dict(request: PlotRequest, drawn: Curves) -> dict[str, Any]:
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


def weight_chart(drawn: Curves) -> alt.TopLevelMixin:
    """Return a panel per sign and kind of weight, in a row per old probability, with a line per label."""
    import pandas as pd

    table = pd.DataFrame(
        [
            (curve.label, curve.sign, curve.old_prob, *values)
            for curve in drawn.curves
            for values in zip(curve.ratios.tolist(), curve.on_log_prob.tolist(), curve.on_prob.tolist(), strict=True)
        ],
        columns=["label", "sign", "old_prob", "ratio", *KINDS],
    )
    old_probs, lines = list(table["old_prob"].unique()), _lines(list(table["label"].unique()))
    single = len(old_probs) == 1
    pairs = [
        _pair(table[table["old_prob"] == old_prob], curves, kind, lines, single=single)
        for old_prob in old_probs
        for curves in [[curve for curve in drawn.curves if curve.old_prob == old_prob]]
        for kind in KINDS
    ]
    body = alt.vconcat(*pairs) if single else alt.vconcat(*map(alt.hconcat, pairs[::2], pairs[1::2]))
    where = f"p = {old_probs[0]:g}" if single else "p of each row"
    width = 110 if single else 180
    notes = [line for note in drawn.notes for line in textwrap.wrap(note, width, subsequent_indent="    ")]
    return body.properties(
        title=alt.TitleParams(
            f"Token weight over the ratio;  old probability {where}",
            subtitle=[_legend(drawn.curves), *notes],
            fontSize=14,
            subtitleColor=MUTED,
        )
    )


def _lines(labels: Sequence[str]) -> alt.Chart:
    """Return the lines without data; earlier lines are wider, so that coinciding ones stay visible."""
    last = max(1, len(labels) - 1)
    widths = [1.5 + 3.0 * (last - position) / last for position in range(len(labels))]
    legend = alt.Legend(orient="top", symbolStrokeWidth=3)
    lines: alt.Chart = (
        alt.Chart()
        .mark_line(clip=True, strokeCap="butt")
        .encode(
            color=alt.Color("label:N", sort=labels, title=None, legend=legend),
            strokeWidth=alt.StrokeWidth("label:N", sort=labels, legend=None, scale=alt.Scale(range=widths)),
        )
    )
    return lines


def _pair(
    table: pd.DataFrame, curves: Sequence[WeightCurve], kind: str, lines: alt.Chart, *, single: bool
) -> alt.HConcatChart:
    old_prob = curves[0].old_prob
    unclipped = 1.0 if kind == "on_log_prob" else 1 / old_prob
    top = max(unclipped, min(table[kind].max(), _TALLEST * unclipped))
    y = alt.Y(f"{kind}:Q", title=None, scale=alt.Scale(domain=[-0.04 * top, 1.06 * top], nice=False))
    row = "" if single else f",  p = {old_prob:g}"
    width, height = (300, 200) if single else (210, 130)
    panels = []
    for sign, sign_text in SIGNS.items():
        behind = _background([curve for curve in curves if curve.sign == sign], kind)
        panel = alt.layer(*behind, lines.encode(x=_ratio(), y=y), data=table[table["sign"] == sign])
        panels.append(panel.properties(width=width, height=height, title=f"{KINDS[kind]},  {sign_text}{row}"))
    return alt.hconcat(*panels)


def _ratio() -> alt.X:
    axis = alt.Axis(
        values=list(_TICKS), labelExpr=f"{{{', '.join(f'{k:g}: {v!r}' for k, v in _TICKS.items())}}}[datum.value]"
    )
    scale = alt.Scale(type="log", domain=list(RATIOS), nice=False)
    return alt.X("ratio:Q", title="ratio r = π / π_old", axis=axis, scale=scale)


def _background(curves: Sequence[WeightCurve], kind: str) -> list[alt.Chart]:
    import pandas as pd

    if not curves:
        words = alt.Chart(pd.DataFrame([{"text": "no such tokens"}]))
        return [words.mark_text(color=MUTED).encode(text="text:N", x=alt.value("width"), y=alt.value(60))]
    old_prob, sign = curves[0].old_prob, curves[0].sign
    possible = min(1 / old_prob, RATIOS[1])
    regions = list(dict.fromkeys(curve.region for curve in curves if curve.region is not None))
    spans = [(max(low, RATIOS[0]), min(high, RATIOS[1]), 0.22) for low, high in regions]
    spans += [(possible, RATIOS[1], 0.08)] if possible < RATIOS[1] else []
    layers = [
        alt.Chart(pd.DataFrame([{"ratio": start, "end": end}]))
        .mark_rect(color=MUTED, opacity=opacity)
        .encode(x=_ratio(), x2="end:Q")
        for start, end, opacity in spans
    ]
    ends = [RATIOS[0] + (possible - RATIOS[0]) * step / 100 for step in range(101)]
    weights = [end if kind == "on_log_prob" else 1 / old_prob for end in ends]
    unclipped = alt.Chart(pd.DataFrame({"ratio": ends, kind: weights}))
    layers.append(
        unclipped.mark_line(color=MUTED, strokeWidth=1, strokeDash=[1, 2], clip=True).encode(x=_ratio(), y=f"{kind}:Q")
    )
    if regions:
        outside = (RATIOS[0], min(low for low, _ in regions)), (max(high for _, high in regions), possible)
        corners = pd.DataFrame(
            [
                {"ratio": math.sqrt(start * end), "text": name}
                for (start, end), name in zip(outside, _CORNERS[sign], strict=True)
                if start < end / 1.2
            ],
            columns=["ratio", "text"],
        )
        words = alt.Chart(corners).mark_text(color=MUTED, fontSize=10, baseline="top")
        layers.append(words.encode(x=_ratio(), text="text:N", y=alt.value(4)))
    return layers


def _legend(curves: Sequence[WeightCurve]) -> str:
    regions = list(dict.fromkeys(curve.region for curve in curves if curve.region is not None))
    words = ["dotted: never clipped"]
    if regions:
        words.append(f"grey: trust region{_region_text(regions)}")
    if any(1 / curve.old_prob < RATIOS[1] for curve in curves):
        words.append("light grey: π would exceed 1")
    return ";  ".join(words)


def _region_text(regions: Sequence[tuple[float, float]]) -> str:
    if len(regions) > 1:
        return "s"
    low, high = regions[0]
    return f" {max(low, 0):g} to {'∞' if math.isinf(high) else f'{high:g}'}"
