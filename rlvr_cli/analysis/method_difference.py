"""On which tokens of a rollout two methods differ, and by how much.

Both methods see the same rollout, the same old policy and the same current policy. What is compared is the coefficient
of each token: what multiplies its grad log pi in the gradient of one optimizer step over the whole rollout. Equal
coefficients are equal gradients, whatever the model.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_cli.analysis.method_step import MethodStep, Scored
from rlvr_cli.methods.base import Regions
from rlvr_cli.methods.method import Method

REGIONS = tuple(field.name for field in dataclasses.fields(Regions))
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Coefficients this close, relative to the larger, are equal: the two may add up the same terms in another order.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Applied:
    """What one method makes of a rollout; all (N, T), 0 on padding.

    Attributes:
        advantages: after the shapings of whole rows and groups.
        weights: what multiplies the advantage: token weight times the factors of token shaping, added up over passes.
        coefficients: what multiplies grad log pi: (weight * advantage + KL term) / normaliser.
        regions: by the bounds of the method's weight.
    """

    advantages: Tensor
    weights: Tensor
    coefficients: Tensor
    regions: Regions


@dataclass(frozen=True)
class Group:
    """Some tokens, and how far the coefficients a and b of two methods lie apart on them.

    Attributes:
        tokens: how many.
        differing: share of them whose coefficients differ.
        sum_a, sum_b: sum of |a|, of |b|.
        sum_difference: sum of |a - b|.
        norm_ratio: |a| / |b|, Euclidean; None where b is 0.
        cosine: between a and b; None where one of them is 0.
    """

    name: str
    tokens: int
    differing: float
    sum_a: float
    sum_b: float
    sum_difference: float
    norm_ratio: float | None
    cosine: float | None


@dataclass(frozen=True)
class TokenDifference:
    """One token. ``position`` counts from 0 within the completion; ``weight_*`` is None where the advantage is 0."""

    row: int
    position: int
    region: str
    old_prob: float
    ratio: float
    advantage_a: float
    advantage_b: float
    weight_a: float | None
    weight_b: float | None
    coefficient_a: float
    coefficient_b: float


@dataclass(frozen=True)
class Difference:
    """Two methods on one rollout; regions are by the bounds of the first."""

    total: Group
    by_region: tuple[Group, ...]
    by_old_prob: tuple[Group, ...]
    largest: tuple[TokenDifference, ...]
    largest_drift: float


def method_difference(first: Method, second: Method, scored: Scored, *, top: int = 10) -> Difference:
    """Compare ``first`` with ``second``; ``top`` tokens of the largest difference are listed, none that are equal."""
    a, b = apply_method(first, scored), apply_method(second, scored)
    valid = scored.rollout.mask.bool()
    old_probs = scored.old_log_probs.exp()
    drift = (scored.log_probs - scored.old_log_probs)[valid]
    pair = (a.coefficients, b.coefficients)
    return Difference(
        total=_group("all tokens", valid, *pair),
        by_region=tuple(_group(name, getattr(a.regions, name), *pair) for name in REGIONS),
        by_old_prob=tuple(_group(name, chosen & valid, *pair) for name, chosen in quarters(old_probs)),
        largest=tuple(_largest(a, b, scored, top)),
        largest_drift=float(drift.abs().max()) if drift.numel() else 0.0,
    )


def apply_method(method: Method, scored: Scored) -> Applied:
    """The coefficients of ``method`` with the whole rollout as one optimizer step.

    The passes of a schedule are added up as if the weights did not move in between.
    """
    step = MethodStep.of(method, scored)
    tokens, mask = step.tokens, step.tokens.mask
    valid, advantages = mask.bool(), tokens.advantages
    weights = torch.where(valid & (advantages != 0), step.full_values() / advantages, 0.0)
    return Applied(torch.where(valid, advantages, 0.0), weights, step.full_coefficients(), step.regions())


def differs(a: Tensor, b: Tensor) -> Tensor:
    """Where two coefficients are not equal but for rounding."""
    return (a - b).abs() > TOLERANCE * torch.maximum(a.abs(), b.abs())


def _group(name: str, chosen: Tensor, first: Tensor, second: Tensor) -> Group:
    a, b = first[chosen], second[chosen]
    count = int(chosen.sum())
    norm_a, norm_b = float(a.norm()), float(b.norm())
    return Group(
        name=name,
        tokens=count,
        differing=float(differs(a, b).double().mean()) if count else 0.0,
        sum_a=float(a.abs().sum()),
        sum_b=float(b.abs().sum()),
        sum_difference=float((a - b).abs().sum()),
        norm_ratio=norm_a / norm_b if norm_b else None,
        # Normed before they are multiplied: products of tiny coefficients would vanish.
        cosine=float((a / norm_a) @ (b / norm_b)) if norm_a and norm_b else None,
    )


def quarters(old_probs: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The quarters of probability by their names, and which of the (N, T) ``old_probs`` lie in each."""
    for low, high in itertools.pairwise(QUARTERS):
        # Rounding may leave a probability just above 1.
        below = (old_probs < high) | (high == QUARTERS[-1])
        yield f"p {low:.2f} to {high:.2f}", (old_probs >= low) & below


def _largest(a: Applied, b: Applied, scored: Scored, top: int) -> Iterator[TokenDifference]:
    distance = torch.where(differs(a.coefficients, b.coefficients), (a.coefficients - b.coefficients).abs(), 0.0)
    width = distance.shape[1]
    order = torch.sort(distance.flatten(), descending=True, stable=True).indices[:top]
    for flat in order.tolist():
        row, position = divmod(flat, width)
        if not distance[row, position]:
            return
        at = (row, position)
        yield TokenDifference(
            row=row,
            position=position,
            region=next(name for name in REGIONS if bool(getattr(a.regions, name)[at])),
            old_prob=float(scored.old_log_probs[at].exp()),
            ratio=float((scored.log_probs[at] - scored.old_log_probs[at]).exp()),
            advantage_a=float(a.advantages[at]),
            advantage_b=float(b.advantages[at]),
            weight_a=float(a.weights[at]) if a.advantages[at] else None,
            weight_b=float(b.weights[at]) if b.advantages[at] else None,
            coefficient_a=float(a.coefficients[at]),
            coefficient_b=float(b.coefficients[at]),
        )
