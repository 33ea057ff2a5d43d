"""Tokens by their probability: whose gradient is large, and what a step along it moves.

Yang et al., arXiv:2505.12929 (AR-Lopti), figures 1 and 3 and proposition 4.2. Everything is at the policy that sampled
the rollout, where every ratio is 1, and a step is one of plain SGD: theta + lr * grad J.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_cli.analysis.loaded_policy import LoadedPolicy, Rows
from rlvr_cli.analysis.method_step import MethodStep
from rlvr_cli.analysis.policy_gradient import Gradient, gradient, logit_gradients, norm, stepped, token_norms
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.methods.statistics import quantile
from rlvr_cli.stats.correlation import pearson, spearman

# Of the two sides of a bound, for what float64 rounds.
ROUNDING = 1e-9
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


@dataclass(frozen=True)
class TokenGroup:
    """Tokens whose old probability is in [low, high).

    Attributes:
        share: of all tokens.
        positive, negative: share of the group with such an advantage, and the mean of it there (None without any).
        norm: of the group's part of grad J, over all parameters.
        norm_per_token: mean norm of grad log pi of a token; None where none was measured.
        norm_at_logits: mean of ||e_k - p||; None for an empty group.
    """

    low: float
    high: float
    tokens: int
    share: float
    positive: float
    negative: float
    positive_advantage: float | None
    negative_advantage: float | None
    norm: float
    norm_per_token: float | None
    norm_at_logits: float | None


@dataclass(frozen=True)
class Change:
    """What one step changes: of each group the mean change of probability, of its size, and quantiles of it.

    Attributes:
        by: whose tokens made the step: ``all``, ``low`` or ``high``.
        match: correlation over all tokens with the change by ``all``; None where one of them is 0.
    """

    by: str
    mean: tuple[float | None, ...]
    size: tuple[float | None, ...]
    quantiles: tuple[tuple[float, ...] | None, ...]
    match: float | None


@dataclass(frozen=True)
class Direction:
    """Shares of tokens that a method's step moves as their advantage says; None where no token moves.

    Attributes:
        positive: by group, of the tokens with A > 0 those that rise. negative: with A < 0 those that fall.
        positive_all, negative_all: over all groups.
    """

    method: str
    positive: tuple[float | None, ...]
    negative: tuple[float | None, ...]
    positive_all: float | None
    negative_all: float | None


@dataclass(frozen=True)
class TokenNorms:
    """1 - p of some tokens and the norm of grad log pi, over all parameters or at the logits; how they go together."""

    rest: tuple[float, ...]
    norms: tuple[float, ...]
    pearson: float | None
    spearman: float | None


@dataclass(frozen=True)
class ByProbability:
    """Everything.

    Attributes:
        sampled: some tokens of each group, measured one at a time over all parameters.
        sampled_at_logits: the same tokens at the logits. at_logits: all tokens there.
        violated: share of all tokens outside the bounds of proposition 4.2 at the logits.
    """

    groups: tuple[TokenGroup, ...]
    sampled: TokenNorms
    sampled_at_logits: TokenNorms
    at_logits: TokenNorms
    violated: float
    changes: tuple[Change, ...]
    directions: tuple[Direction, ...]


def by_probability(
    policy: LoadedPolicy,
    rows: Rows,
    steps: Sequence[MethodStep],
    *,
    bounds: Sequence[float],
    quantiles: bool,
    lr: float,
    sample: int,
    seed: int,
) -> ByProbability:
    """Measure the gradient of the first of ``steps`` by groups, and what each of them moves.

    Args:
        policy: the one that sampled.
        steps: ``rows`` as several methods see them, at that policy.
        bounds: between the groups; shares of the tokens where ``quantiles``, else probabilities.
        sample: tokens of each group that are measured one at a time; fewer where the group has fewer.
    """
    first = steps[0]
    old, valid = first.tokens.old_log_probs, first.tokens.mask.bool()
    edges = _edges(old.exp()[valid], bounds, quantiles)
    masks = [valid & (old.exp() >= low) & (old.exp() < high) for low, high in itertools.pairwise(edges)]
    part_norms, moved = _steps_of_groups(policy, rows, first.full_coefficients(), masks, old, lr)
    logits = logit_gradients(policy, rows, old.shape[1])
    places = _drawn(masks, sample, seed)
    norms = token_norms(policy, rows, [place for of_group in places for place in of_group])
    ends = list(itertools.accumulate((len(of_group) for of_group in places), initial=0))
    groups = []
    for mask, part_norm, (low, high), (start, end) in zip(
        masks, part_norms, itertools.pairwise(edges), itertools.pairwise(ends), strict=True
    ):
        per_token = float(norms[start:end].mean()) if end > start else None
        groups.append(_group(mask, valid, first.tokens.advantages, low, high, part_norm, per_token, logits.norms))
    drawn = torch.tensor([place for of_group in places for place in of_group], dtype=torch.int64).reshape(-1, 2).T
    rest, norms_at_logits = (of[drawn[0], drawn[1]] for of in (logits.rest, logits.norms))
    return ByProbability(
        groups=tuple(groups),
        sampled=_norms(rest, norms),
        sampled_at_logits=_norms(rest, norms_at_logits),
        at_logits=_norms(logits.rest[valid], logits.norms[valid]),
        violated=_violated(logits.rest[valid], logits.norms[valid], logits.vocabulary),
        changes=_changes(moved, masks, valid),
        directions=tuple(_direction(policy, rows, step, masks, lr) for step in steps),
    )


def after_steps(policy: LoadedPolicy, rows: Rows, step: MethodStep, lr: float) -> Tensor:
    """(N, T) log-probs after one SGD step for each pass of the method's schedule, in its order.

    The ratios of a later pass are those that the earlier ones have made.
    """

    def following(passes: Sequence[str], now: MethodStep) -> Tensor:
        if not passes:
            return now.tokens.log_probs
        direction = gradient(policy, rows, now.coefficients(passes[0]))
        with stepped(policy, direction, lr):
            return following(passes[1:], now.at(*policy.score(rows, step.tokens.mask.shape[1])))

    return following(step.method.schedule.passes, step)


def _edges(probabilities: Tensor, bounds: Sequence[float], quantiles: bool) -> list[float]:
    between = [float(quantile(probabilities, bound)) for bound in bounds] if quantiles else list(bounds)
    # Rounding may leave a probability just above 1.
    return [0.0, *between, math.inf]


def _drawn(masks: Sequence[Tensor], sample: int, seed: int) -> list[list[tuple[int, int]]]:
    """Of each group as many tokens, in the order of rows, so that the rare ones are seen as well as the frequent."""
    drawn = []
    for index, mask in enumerate(masks):
        places = [(int(row), int(position)) for row, position in mask.nonzero().tolist()]
        generator = random.Random(stream_seed(seed, "probability-tokens", index))
        drawn.append(sorted(generator.sample(places, min(sample, len(places)))))
    return drawn


def _group(
    mask: Tensor,
    valid: Tensor,
    advantages: Tensor,
    low: float,
    high: float,
    whole: float,
    per_token: float | None,
    at_logits: Tensor,
) -> TokenGroup:
    count = int(mask.sum())
    positive, negative = mask & (advantages > 0), mask & (advantages < 0)
    return TokenGroup(
        low=low,
        high=min(high, 1.0),
        tokens=count,
        share=count / max(int(valid.sum()), 1),
        positive=int(positive.sum()) / max(count, 1),
        negative=int(negative.sum()) / max(count, 1),
        positive_advantage=mean_of(advantages[positive]),
        negative_advantage=mean_of(advantages[negative]),
        norm=whole,
        norm_per_token=per_token,
        norm_at_logits=mean_of(at_logits[mask]),
    )


def _norms(rest: Tensor, norms: Tensor) -> TokenNorms:
    a, b = rest.tolist(), norms.tolist()
    return TokenNorms(tuple(a), tuple(b), pearson(a, b), spearman(a, b))


def _violated(rest: Tensor, norms: Tensor, vocabulary: int) -> float:
    """Share outside sqrt(N / (N - 1)) (1 - p) <= ||e_k - p|| <= sqrt(2) (1 - p): eq. 16 and 18, w = 1."""
    below = norms < math.sqrt(vocabulary / (vocabulary - 1)) * rest * (1 - ROUNDING)
    above = norms > math.sqrt(2) * rest * (1 + ROUNDING)
    return float((below | above).double().mean())


def _steps_of_groups(
    policy: LoadedPolicy, rows: Rows, coefficients: Tensor, masks: Sequence[Tensor], old: Tensor, lr: float
) -> tuple[list[float], dict[str, Tensor]]:
    """Norm of each group's gradient, and (N, T) changes of probability in a step by all, low and high tokens.

    Two gradients are held at a time: the sum so far, and one group's.
    """

    def moved_by(direction: Gradient) -> Tensor:
        with stepped(policy, direction, lr):
            # Of log-probs first: a probability near 1 has fewer digits left.
            return old.exp() * torch.expm1(policy.score(rows, old.shape[1])[0] - old)

    norms, moved, whole = list[float](), dict[str, Tensor](), Gradient()
    for index, mask in enumerate(masks):
        part = gradient(policy, rows, torch.where(mask, coefficients, 0.0))
        norms.append(norm(part))
        for by, of in (("low", 0), ("high", len(masks) - 1)):
            if index == of:
                moved[by] = moved_by(part)
        for name, value in part.items():
            whole[name] = whole[name].add_(value) if name in whole else value.clone()
    return norms, {"all": moved_by(whole), **moved}


def _changes(moved: dict[str, Tensor], masks: Sequence[Tensor], valid: Tensor) -> tuple[Change, ...]:
    whole = moved["all"][valid].tolist()
    return tuple(
        Change(
            by=by,
            mean=tuple(mean_of(change[mask]) for mask in masks),
            size=tuple(mean_of(change[mask].abs()) for mask in masks),
            quantiles=tuple(_quantiles(change[mask]) for mask in masks),
            match=pearson(change[valid].tolist(), whole),
        )
        for by, change in moved.items()
    )


def _direction(policy: LoadedPolicy, rows: Rows, step: MethodStep, masks: Sequence[Tensor], lr: float) -> Direction:
    moved = after_steps(policy, rows, step, lr) - step.tokens.old_log_probs
    advantages = step.tokens.advantages
    learned = step.tokens.mask.bool() & (moved != 0)

    def share(chosen: Tensor, sign: int) -> float | None:
        return mean_of((moved[chosen & learned & (advantages * sign > 0)] * sign > 0).double())

    everywhere = torch.ones_like(learned)
    return Direction(
        method=step.method.name,
        positive=tuple(share(mask, 1) for mask in masks),
        negative=tuple(share(mask, -1) for mask in masks),
        positive_all=share(everywhere, 1),
        negative_all=share(everywhere, -1),
    )


def mean_of(values: Tensor) -> float | None:
    """The mean; None of nothing."""
    return float(values.double().mean()) if values.numel() else None


def _quantiles(values: Tensor) -> tuple[float, ...] | None:
    return tuple(float(quantile(values, share)) for share in QUANTILES) if values.numel() else None
