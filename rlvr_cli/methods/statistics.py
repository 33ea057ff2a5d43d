"""Quantile and whitening over all valid tokens of a rollout or a step, in float64."""

from __future__ import annotations

import math

from rlvr_cli.core.lazy import Tensor, torch

WHITENING_EPSILON = 1e-8


def quantile(values: Tensor, share: float) -> Tensor:
    """() the ``share``-quantile of (n,) values, n > 0, with linear interpolation, in float64; of any length.

    As ``torch.quantile``, which refuses more than 16 million values.
    """
    ordered = values.double().sort().values
    rank = share * (len(ordered) - 1)
    if math.isclose(rank, round(rank), rel_tol=1e-12):
        # Rounding of the product must not move the result off an element that it is to equal.
        rank = round(rank)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def whitened(values: Tensor, mask: Tensor) -> Tensor:
    """(N, T) (values - mean) / sqrt(var + 1e-8) over all tokens of ``mask``, var with ddof 1; 0 elsewhere.

    Exactly 0 everywhere if all values are equal, where rounding of the mean would leave a remainder.
    """
    valid = mask.bool()
    chosen = values.double()[valid]
    if not len(chosen) or bool(chosen.min() == chosen.max()):
        return torch.zeros_like(values)
    deviation = chosen - chosen.mean()
    variance = deviation.square().sum() / (len(chosen) - 1)
    result = torch.zeros_like(values, dtype=torch.float64)
    result[valid] = deviation * torch.rsqrt(variance + WHITENING_EPSILON)
    return result.to(values.dtype)
