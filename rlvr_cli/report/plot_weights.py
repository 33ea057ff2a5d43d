"""Draw the weights of a request."""

from __future__ import annotations

from typing import Any

from rlvr_cli.report.plot_request import PlotRequest
from rlvr_cli.report.weight_curves import Curves, weight_curves
from rlvr_cli.report.weight_figure import weight_figure
from rlvr_cli.results.figure import style, write_figure


def plot_weights(request: PlotRequest) -> Curves:
    """Write the picture; what was drawn comes back."""
    # The normaliser has no part in the picture, so that any length does.
    methods = [config.bound(1) for config in request.configs]
    drawn = weight_curves(methods, request.old_probs, spread=request.spread)
    with style():
        write_figure(weight_figure(drawn), request.out)
    return drawn


def as_dict(request: PlotRequest, drawn: Curves) -> dict[str, Any]:
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
