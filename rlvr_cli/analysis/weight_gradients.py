"""The bias of methods to the true policy gradient, as the length of the difference of two gradients, by region.

DGPO paper, arXiv:2603.14389, appendix A.3.2: ||grad J_method^X - grad J_PG^X||, Euclidean, X a region. Here each is
relative to ||grad J_PG^X||.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from rlvr_cli.analysis.method_difference import REGIONS
from rlvr_cli.analysis.weights import ALL, MethodWeights

NormOf = Callable[[Tensor], float]


def gradient_bias(weights: MethodWeights, norm_of: NormOf) -> dict[str, float | None]:
    """Bias over all tokens and in each region, relative to the true gradient there; None where that is 0.

    Args:
        norm_of: the norm of sum c grad log pi for (N, T) coefficients c, as :class:`Norms`.
    """
    return dict(_biases(weights, norm_of))


class Norms:
    """Norms by coefficients: ``norm_of`` is asked once for each set of them up to its sign, and never for zeros."""

    def __init__(self, norm_of: NormOf) -> None:
        self._norm_of = norm_of
        self._known: list[tuple[Tensor, float]] = []

    def __call__(self, coefficients: Tensor) -> float:
        if not bool(coefficients.any()):
            return 0.0
        for known, value in self._known:
            if torch.equal(known, coefficients) or torch.equal(known, -coefficients):
                return value
        value = self._norm_of(coefficients)
        self._known.append((coefficients, value))
        return value


def _biases(weights: MethodWeights, norm_of: NormOf) -> Iterable[tuple[str, float | None]]:
    for name in (ALL, *REGIONS):
        chosen = weights.region(name)
        true = norm_of(torch.where(chosen, weights.true, 0.0))
        yield name, norm_of(torch.where(chosen, weights.difference, 0.0)) / true if true else None
