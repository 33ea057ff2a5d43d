"""Weights of a rollout's tokens on grad log pi and on grad pi, by region, and their bias to the true policy gradient.

With advantage A, a token's part of a method's gradient is F A grad log pi = W A grad pi, W = F / pi. The true policy
gradient has F = r. DGPO paper, arXiv:2603.14389: table 1 (regions), section 4.2 (W), appendix A.3 (bias); figure 4
shows W relative to 1 / pi_old, which is F / r.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_cli.analysis.method_difference import REGIONS, apply_method, differs, quarters
from rlvr_cli.analysis.method_step import Scored
from rlvr_cli.methods.base import Regions, Tokens, regions
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.statistics import quantile

ALL = "all"


@dataclass(frozen=True)
class MethodWeights:
    """What one method makes of a rollout's tokens; all (N, T), 0 on padding and where the advantage is 0.

    Attributes:
        method: the name.
        learned: the tokens with an advantage; nothing else has a weight.
        ratio: r = pi / pi_old; 0 where no weight is.
        old_probs: probability under the policy that sampled.
        on_log_prob: F, with the factors of shaping: what multiplies A grad log pi.
        true: coefficient r A / Z of grad log pi in the true policy gradient, up to a factor common to all tokens.
        coefficients: F A / Z, up to the same factor; a KL term has no part in it.
        regions: by bounds that all methods share, and the signs of this method's advantages.
    """

    method: str
    learned: Tensor
    ratio: Tensor
    old_probs: Tensor
    on_log_prob: Tensor
    true: Tensor
    coefficients: Tensor
    regions: Regions

    @property
    def relative(self) -> Tensor:
        """(N, T) F / r = W pi_old: the weight on grad pi relative to that of the true policy gradient, 1 / pi_old."""
        return torch.where(self.learned, self.on_log_prob / self.ratio, 0.0)

    @property
    def difference(self) -> Tensor:
        """(N, T) the coefficients of the method's gradient less those of the true one: (F - r) A / Z."""
        return torch.where(differs(self.coefficients, self.true), self.coefficients - self.true, 0.0)

    def region(self, name: str) -> Tensor:
        """(N, T) the tokens of a region, or of ``ALL``, that have an advantage."""
        if name == ALL:
            return self.learned
        chosen: Tensor = getattr(self.regions, name)
        return chosen & self.learned


@dataclass(frozen=True)
class GroupWeights:
    """Some tokens of a method; each number is None where there is none.

    Attributes:
        tokens: how many with an advantage.
        on_log_prob: mean F.
        on_prob: mean W = F / pi.
        relative, largest: mean and largest F / r.
        slope: of log(F / r) over log r, by least squares over the tokens whose weight is not 0.
        bias: sum |F - r| |A| / Z over sum r |A| / Z: the bias relative to the true gradient of these tokens if all
            their grad log pi were of one length and none cancelled (the decoupling assumption of appendix A.3.4).
    """

    name: str
    tokens: int
    on_log_prob: float | None
    on_prob: float | None
    relative: float | None
    largest: float | None
    slope: float | None
    bias: float | None


def method_weights(method: Method, scored: Scored, *, eps_low: float, eps_high: float) -> MethodWeights:
    """The weights of ``method`` on a rollout that a later policy has scored.

    Args:
        eps_low, eps_high: bounds of the regions, 1 - eps_low and 1 + eps_high, whatever the method's own are.
    """
    applied = apply_method(method, scored)
    mask, advantages = scored.rollout.mask, applied.advantages
    tokens = Tokens(scored.log_probs, scored.old_log_probs, advantages, mask)
    learned = mask.bool() & (advantages != 0)
    ratio = torch.where(learned, tokens.ratio, 0.0)
    # What a step's normaliser counts is one number, which leaves every relation between tokens as it is.
    normaliser = method.aggregation.coefficients(mask, torch.ones((), dtype=torch.float64))
    return MethodWeights(
        method=method.name,
        learned=learned,
        ratio=ratio,
        old_probs=tokens.old_probs,
        # No weight is -0, which would be printed.
        on_log_prob=applied.weights + 0.0,
        true=ratio * advantages * normaliser,
        coefficients=applied.weights * advantages * normaliser,
        regions=regions(tokens, eps_low, eps_high),
    )


def by_region(weights: MethodWeights) -> Iterator[GroupWeights]:
    """All tokens, then each region."""
    for name in (ALL, *REGIONS):
        yield _group(name, weights.region(name), weights)


def by_old_prob(weights: MethodWeights) -> Iterator[GroupWeights]:
    """The tokens by quarters of the old probability."""
    for name, chosen in quarters(weights.old_probs):
        yield _group(name, chosen & weights.learned, weights)


def decay_of_ratios(ratios: Tensor, lowest: float) -> float | None:
    """gamma of the density k r^gamma on (0, lowest) that makes ``ratios`` most likely; None without a ratio in there.

    The density is that of appendix A.3.4; the estimate is gamma + 1 = n / sum log(lowest / r).
    """
    inside = ratios[(ratios > 0) & (ratios < lowest)]
    total = float((lowest / inside).log().sum())
    return inside.numel() / total - 1 if total > 0 else None


def median_old_prob(weights: MethodWeights, names: Sequence[str]) -> float | None:
    """Median old probability of the tokens in the regions ``names``; None where there are none."""
    chosen = torch.stack([weights.region(name) for name in names]).any(dim=0)
    return float(quantile(weights.old_probs[chosen], 0.5)) if bool(chosen.any()) else None


def _group(name: str, chosen: Tensor, weights: MethodWeights) -> GroupWeights:
    count = int(chosen.sum())
    if not count:
        return GroupWeights(name, 0, None, None, None, None, None, None)
    ratio, old = weights.ratio[chosen], weights.old_probs[chosen]
    on_log_prob, relative = weights.on_log_prob[chosen], weights.relative[chosen]
    true = float(weights.true[chosen].abs().sum())
    return GroupWeights(
        name=name,
        tokens=count,
        on_log_prob=float(on_log_prob.mean()),
        on_prob=float((on_log_prob / (ratio * old)).mean()),
        relative=float(relative.mean()),
        largest=float(relative.max()),
        slope=_slope(ratio, relative),
        bias=float(weights.difference[chosen].abs().sum()) / true if true else None,
    )


def _slope(ratio: Tensor, relative: Tensor) -> float | None:
    weighted = relative > 0
    x, y = ratio[weighted].log(), relative[weighted].log()
    if x.numel() < 2:
        return None
    x, y = x - x.mean(), y - y.mean()
    spread = float(x @ x)
    return float(x @ y) / spread if spread > 0 else None
