"""The importance ratio by probability and by updates since the rollout, what is clipped, and whose gradient is large.

"What are key factors for updates in RL for LLM reasoning?" (ACPO), figure 2, lemma 1, proposition 1, remark 1 and
appendix C. Probabilities and entropies are those of the policy that sampled, but for the factor 1 - pi of a gradient,
which is the current policy's.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_cli.analysis.gradient_expectation import expected_gradient, lemma_spread
from rlvr_cli.analysis.method_step import MethodStep
from rlvr_cli.analysis.probability import mean_of
from rlvr_cli.methods.statistics import quantile

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
# A clipped token's entropy is compared with that of so many others on either side of it in probability.
NEIGHBOURS = 5


@dataclass(frozen=True)
class Bin:
    """Tokens whose old probability is in [low, high); None where there are none, or none with an advantage.

    Attributes:
        spread: standard deviation of the ratio. mean: of the ratio. quantiles: of the ratio, at ``QUANTILES``.
        clipped: share of the tokens with an advantage that are clipped.
        magnitude: mean |G|, G = (1 - pi) F A. signed: |mean G|.
        expected_magnitude, expected_signed: the same by proposition 1, with the kappa of the whole rollout.
    """

    low: float
    high: float
    tokens: int
    spread: float | None
    mean: float | None
    quantiles: tuple[float, ...] | None
    clipped: float | None
    magnitude: float | None
    signed: float | None
    expected_magnitude: float | None
    expected_signed: float | None


@dataclass(frozen=True)
class Exponent:
    """log spread = exponent * log(1 - pi) + constant, by least squares over groups of as many tokens.

    Attributes:
        rest, spread: of each group: mean of 1 - pi, standard deviation of the ratio.
        exponent, fit: slope and R^2; None where fewer than three groups have a spread.
    """

    rest: tuple[float, ...]
    spread: tuple[float, ...]
    exponent: float | None
    fit: float | None


@dataclass(frozen=True)
class Clipped:
    """The clipped tokens (regions LN and HP) among those with an advantage; None where there are none of either.

    Attributes:
        tokens, share: how many are clipped, and of how many.
        low_share, low_share_of_all: how many of the clipped, and of all, are in the first bin.
        entropy, entropy_of_others: mean entropy, nats.
        entropy_difference: mean over the clipped tokens of their entropy minus that of the others next to them in
            probability, ``NEIGHBOURS`` on either side.
    """

    tokens: int
    share: float | None
    low_share: float | None
    low_share_of_all: float | None
    entropy: float | None
    entropy_of_others: float | None
    entropy_difference: float | None


@dataclass(frozen=True)
class Ratios:
    """The ratios after some updates; ``kappa`` fits lemma 1: kappa^2 = mean (r - 1)^2 / mean (1 - pi)^4."""

    updates: int
    bins: tuple[Bin, ...]
    exponent: Exponent
    clipped: Clipped
    kappa: float


@dataclass(frozen=True)
class Plane:
    """Tokens with an advantage in the plane of probability and entropy (nats), and which are clipped."""

    probabilities: tuple[float, ...]
    entropies: tuple[float, ...]
    clipped: tuple[bool, ...]


def measure(updates: int, now: MethodStep, old_entropies: Tensor, *, bins: int, groups: int) -> Ratios:
    """The ratios of a rollout's tokens after ``updates``.

    Args:
        now: the rollout at the current policy. old_entropies: (N, T) of the policy that sampled, nats.
        bins: of one width. groups: of as many tokens each, for the exponent.
    """
    tokens, valid = now.tokens, now.tokens.mask.bool()
    distance = torch.expm1(tokens.log_probs - tokens.old_log_probs)
    # Rounding may leave a probability just above 1.
    rest = -torch.expm1(tokens.old_log_probs).clamp(max=0)
    learned, cut = valid & (tokens.advantages != 0), clipped_tokens(now)
    masks = bin_masks(tokens.old_probs, valid, bins)
    fourth = float(rest[valid].pow(4).mean())
    kappa = math.sqrt(float(distance[valid].square().mean()) / fourth) if fourth else 0.0
    gradients = -torch.expm1(tokens.log_probs) * now.full_values()
    expected = _expected(now, rest, kappa, learned)
    edges = [index / bins for index in range(bins + 1)]
    return Ratios(
        updates=updates,
        bins=tuple(
            _bin(low, high, mask, mask & learned, distance, cut, gradients, *expected)
            for (low, high), mask in zip(itertools.pairwise(edges), masks, strict=True)
        ),
        exponent=_exponent(distance[valid], rest[valid], groups),
        clipped=_clipped(cut, learned, old_entropies, tokens.old_probs, masks[0]),
        kappa=kappa,
    )


def plane(now: MethodStep, old_entropies: Tensor) -> Plane:
    """Where the clipped tokens lie (figure 2c)."""
    learned = now.tokens.mask.bool() & (now.tokens.advantages != 0)
    of = (now.tokens.old_probs, old_entropies, clipped_tokens(now))
    return Plane(*(tuple(values[learned].tolist()) for values in of))


def entropy_bounds(probabilities: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Least and largest entropy (nats) of a distribution over ``vocabulary`` tokens that gives one of them pi.

    H_min: the rest on a single token; H_max: the rest evenly on all others. ACPO, appendix C. Probabilities inside
    (0, 1).
    """
    p, q = probabilities.double(), 1 - probabilities.double()
    least = -p * p.log() - q * q.log()
    return least, least + q * math.log(vocabulary - 1)


def clipped_tokens(now: MethodStep) -> Tensor:
    """(N, T) the tokens whose gradient a hard clip at the method's bounds removes: regions LN and HP."""
    regions = now.regions()
    return regions.LN | regions.HP


def bin_masks(old_probs: Tensor, valid: Tensor, bins: int) -> list[Tensor]:
    """The tokens of each of ``bins`` bins of one width; rounding may leave a probability just above 1."""
    which = (old_probs * bins).long().clamp(max=bins - 1)
    return [valid & (which == index) for index in range(bins)]


def _expected(now: MethodStep, rest: Tensor, kappa: float, learned: Tensor) -> tuple[Tensor, Tensor]:
    advantages = now.tokens.advantages
    sigma = float(advantages[learned].square().mean().sqrt()) if bool(learned.any()) else 0.0
    eps_low, eps_high = now.bounds()
    found = expected_gradient(rest, lemma_spread(rest, kappa), eps_low, eps_high, sigma)
    return found.magnitude, found.signed


def _bin(
    low: float,
    high: float,
    mask: Tensor,
    learned: Tensor,
    distance: Tensor,
    cut: Tensor,
    gradients: Tensor,
    magnitude: Tensor,
    signed: Tensor,
) -> Bin:
    ratios, mean, expected = 1 + distance[mask], mean_of(gradients[learned]), mean_of(signed[learned])
    return Bin(
        low=low,
        high=high,
        tokens=len(ratios),
        spread=_spread(distance[mask]),
        mean=mean_of(ratios),
        quantiles=tuple(float(quantile(ratios, share)) for share in QUANTILES) if len(ratios) else None,
        clipped=mean_of(cut[learned]),
        magnitude=mean_of(gradients[learned].abs()),
        signed=None if mean is None else abs(mean),
        expected_magnitude=mean_of(magnitude[learned]),
        expected_signed=None if expected is None else abs(expected),
    )


def _spread(distance: Tensor) -> float | None:
    return float(distance.std(correction=0)) if distance.numel() else None


def _exponent(distance: Tensor, rest: Tensor, groups: int) -> Exponent:
    parts = torch.sort(rest, stable=True).indices.tensor_split(groups)
    points = [(float(rest[part].mean()), float(distance[part].std(correction=0))) for part in parts if len(part) > 1]
    # A group whose tokens all have probability 1 to the last digit has neither.
    points = [(x, y) for x, y in points if x > 0 and y > 0]
    logs = torch.tensor(points, dtype=torch.float64).reshape(-1, 2).log().T
    exponent = fit = None
    if len(points) >= 3:
        x, y = logs - logs.mean(dim=1, keepdim=True)
        if float(x @ x) and float(y @ y):
            exponent, fit = float(x @ y / (x @ x)), float((x @ y) ** 2 / ((x @ x) * (y @ y)))
    return Exponent(tuple(x for x, _ in points), tuple(y for _, y in points), exponent, fit)


def _clipped(cut: Tensor, learned: Tensor, entropies: Tensor, old_probs: Tensor, lowest: Tensor) -> Clipped:
    clipped, others = learned & cut, learned & ~cut
    return Clipped(
        tokens=int(clipped.sum()),
        share=mean_of(cut[learned]),
        low_share=mean_of(lowest[clipped]),
        low_share_of_all=mean_of(lowest[learned]),
        entropy=mean_of(entropies[clipped]),
        entropy_of_others=mean_of(entropies[others]),
        entropy_difference=_at_equal_probability(clipped, others, old_probs, entropies),
    )


def _at_equal_probability(clipped: Tensor, others: Tensor, old_probs: Tensor, values: Tensor) -> float | None:
    """Mean over the clipped of their value minus that of their neighbours; None where there are none of either.

    Neighbours and not bins: even in a narrow bin near 1 most others are much more certain than the clipped tokens.
    """
    if not bool(clipped.any()) or not bool(others.any()):
        return None
    probabilities, order = old_probs[others].sort()
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), values[others][order].double().cumsum(dim=0)])
    place = torch.searchsorted(probabilities, old_probs[clipped])
    first, end = (place - NEIGHBOURS).clamp(min=0), (place + NEIGHBOURS).clamp(max=len(probabilities))
    nearby = (sums[end] - sums[first]) / (end - first)
    return float((values[clipped] - nearby).mean())
