"""ACPO's expected gradient of a token, and the reversal of dominance between low- and high-probability tokens.

    G = (1 - pi) rho A 1[not clipped]                                                               equation 3

with A ~ N(0, sigma_A^2) and rho ~ N(1, sigma^2), independent, sigma = kappa (1 - pi)^2 (lemma 1). Then, with
a = eps_high / sigma, b = eps_low / sigma and C = sigma_A / sqrt(2 pi),

    E[G]   = (1 - pi) C (Phi(a) - Phi(b) - sigma (phi(a) + phi(b)))                    proposition 1, equations 5 and 6
    E[|G|] = (1 - pi) C (Phi(a) + Phi(b) - sigma (phi(a) - phi(b)))                    sum of the same halves

The halves are A > 0, with rho clipped above 1 + eps_high, and A < 0, below 1 - eps_low. "What are key factors for
updates in RL for LLM reasoning?" (ACPO), appendix B.2. Negative rho, possible under the normal distribution, counts
with its sign.

Differences from the paper: it calls E[G] a magnitude, yet the halves of both signs cancel, unlike in E[|G|]. Its
appendix B.3 uses Phi(-b) for equation 6's Phi(b), and claims 1 / kappa for high probabilities, for which equation 6
decays exponentially. The reversal is computed here from equations 5 and 6.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from rlvr_cli.core.lazy import Tensor, torch

POINTS = 400
SMALLEST_KAPPA, LARGEST_KAPPA = 1e-3, 1e2
# Smaller standard deviations of the ratio count as 0: nothing is clipped.
NO_SPREAD = 1e-12


@dataclass(frozen=True)
class Expected:
    """E[G] and E[|G|], of the shape of the probabilities."""

    signed: Tensor
    magnitude: Tensor


def expected_gradient(
    rest: Tensor, spread: Tensor, eps_low: Tensor | float, eps_high: Tensor | float, sigma_advantage: float
) -> Expected:
    """Return E[G] and E[|G|] of tokens with 1 - pi = ``rest`` and ratios of standard deviation ``spread``."""
    sigma = spread.double().clamp(min=NO_SPREAD)
    high, low = eps_high / sigma, eps_low / sigma
    positive = _cumulative(high) - sigma * _density(high)
    negative = _cumulative(low) + sigma * _density(low)
    scale = rest.double() * sigma_advantage / math.sqrt(2 * math.pi)
    return Expected(scale * (positive - negative), scale * (positive + negative))


def lemma_spread(rest: Tensor, kappa: float) -> Tensor:
    """Return the standard deviation of the ratio, kappa (1 - pi)^2 (equation 4)."""
    return kappa * rest.double().square()


def dominance(
    kappa: float, eps_low: float, eps_high: float, *, p_low: float, p_high: float
) -> tuple[float | None, float | None]:
    """Return log |G_L| / |G_H|, signed and of magnitudes: means over grids of [0, p_low] and [p_high, 1] (eq. 54, 55).

    None if one of them underflows.
    """
    low, high = (
        expected_gradient(rest, lemma_spread(rest, kappa), eps_low, eps_high, 1.0)
        for rest in (_rests(0.0, p_low), _rests(p_high, 1.0))
    )
    return (
        log_ratio(abs(float(low.signed.mean())), abs(float(high.signed.mean()))),
        log_ratio(float(low.magnitude.mean()), float(high.magnitude.mean())),
    )


def reversal_kappas(eps_low: float, eps_high: float, *, p_low: float, p_high: float) -> tuple[list[float], list[float]]:
    """Return the kappas of a grid at which the dominance changes sign, signed and of magnitudes."""
    grid = torch.logspace(math.log10(SMALLEST_KAPPA), math.log10(LARGEST_KAPPA), POINTS).tolist()
    rows = [(kappa, dominance(kappa, eps_low, eps_high, p_low=p_low, p_high=p_high)) for kappa in grid]

    def reversals(index: int) -> list[float]:
        points = [(kappa, value) for kappa, values in rows if (value := values[index]) is not None]
        return [kappa for (_, before), (kappa, value) in itertools.pairwise(points) if (before > 0) != (value > 0)]

    return reversals(0), reversals(1)


def log_ratio(first: float | None, second: float | None) -> float | None:
    """Return log(first / second); None unless both are positive."""
    return math.log(first / second) if first and second and first > 0 and second > 0 else None


def _rests(low: float, high: float) -> Tensor:
    middles = (torch.arange(POINTS, dtype=torch.float64) + 0.5) / POINTS
    return 1 - (low + (high - low) * middles)


def _cumulative(x: Tensor | float) -> Tensor:
    below: Tensor = torch.special.ndtr(torch.as_tensor(x, dtype=torch.float64))
    return below


def _density(x: Tensor | float) -> Tensor:
    return torch.exp(-torch.as_tensor(x, dtype=torch.float64).square() / 2) / math.sqrt(2 * math.pi)
