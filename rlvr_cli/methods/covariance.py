"""Clip-Cov and KL-Cov: tokens whose log-prob and advantage covary most lose their gradient, or are held back.

    cov = (A - mean A) (log pi - mean log pi)        means over the tokens of the optimizer step

    Clip-Cov:  F = r, but 0 in the clip regions, and at n tokens drawn from those with cov_low < cov < cov_high
    KL-Cov:    F = r,  P = -beta sign(log r) at the n tokens with the largest cov        n = max(1, floor(share tokens))

Cui et al., arXiv:2505.22617, equations 10 to 14 and section 4.3: these few tokens lower the entropy most. P is the
gradient of the penalty beta |log r| (listing 1; equation 14 prints a KL divergence), 0 at a ratio of 1: KL-Cov differs
from ``is`` only with several updates, Clip-Cov acts from the first.

Means, n and thresholds are those of the step, of all micro-batches and processes. The draw is a hash of the
completion's tokens and the position: it depends on no order, split or random state, and takes equal completions
together, so that n may be exceeded. A threshold lies halfway between two values, out of reach of the rounding of
another forward pass.

How we differ from the paper: |log r| up to 1e-5 counts as 0, since the sign of rounding would get all of beta.

How we differ from the released code: it takes means, n and ranks of each micro-batch of each GPU. Its weights for
another sampler multiply the penalty too, ours F A alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Contradiction, NotNegative
from rlvr_cli.methods.base import Advantage, EpsHigh, EpsLow, OpenShare, PolicyLoss, Tokens
from rlvr_cli.methods.preset import MethodPreset, Paper, trust_region
from rlvr_cli.methods.unclipped import ImportanceSampling, Unclipped

ROUNDING = 1e-5


class Covariance(PolicyLoss, ABC):
    """A loss that treats some tokens by their covariance; its statistics: mean A, mean log pi and a threshold."""

    share: OpenShare = Field(2e-4, description="Share of the step's tokens that are selected, at least one token.")

    needs_statistics: ClassVar[bool] = True

    def covariances(self, tokens: Tokens, means: Tensor) -> Tensor:
        """Return (B, T) cov in float64."""
        return (tokens.advantages.double() - means[0]) * (tokens.log_probs.detach().double() - means[1])

    def statistics(self, tokens: Tokens) -> Tensor:
        """Return (3,) float64."""
        valid = tokens.mask.bool()
        values = torch.stack([tokens.advantages.expand_as(tokens.log_probs), tokens.log_probs.detach()])[:, valid]
        means = values.double().mean(dim=1) if valid.any() else torch.zeros(2, dtype=torch.float64, device=valid.device)
        number = max(1, int(self.share * int(valid.sum())))
        return torch.cat([means, self.threshold(tokens, means, number).view(1)])

    @abstractmethod
    def threshold(self, tokens: Tokens, means: Tensor, number: int) -> Tensor:
        """Return () the value that selects ``number`` tokens."""


class ClipCov(Covariance):
    """The clipped ratio, without gradient at tokens drawn among those of high covariance."""

    kind: Literal["clip_cov"] = Field("clip_cov", description="clip_cov = clipped ratio, 0 at some of high covariance.")
    eps_low: EpsLow = Field(1.0, description="Lower bound of the trust region: ratio 1 - eps_low.")
    eps_high: EpsHigh = Field(1.0, description="Upper bound of the trust region: ratio 1 + eps_high.")
    cov_low: float = Field(1.0, description="Tokens are drawn from those of larger covariance.")
    cov_high: float = Field(5.0, description="Tokens are drawn from those of smaller covariance.")

    unit_on_policy: ClassVar[bool] = False

    @property
    def reads_whole_rows(self) -> bool:
        return True

    def contradictions(self, advantage: Advantage) -> Iterator[Contradiction]:
        if self.cov_low >= self.cov_high:
            low, high = "method.policy_loss.cov_low", "method.policy_loss.cov_high"
            yield Contradiction(
                (low, high), f"{low}={self.cov_low:g} must be below {high}={self.cov_high:g}: no token is drawn"
            )

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return self.eps_low, self.eps_high

    def candidates(self, tokens: Tokens, means: Tensor) -> Tensor:
        """Return (B, T) the valid tokens inside the trust region between the bounds of cov."""
        regions, cov = self.regions(tokens), self.covariances(tokens, means)
        return tokens.mask.bool() & ~(regions.LN | regions.HP) & (cov > self.cov_low) & (cov < self.cov_high)

    def threshold(self, tokens: Tokens, means: Tensor, number: int) -> Tensor:
        return _between(draw(tokens)[self.candidates(tokens, means)], number, 0.0)

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        assert statistics is not None
        regions = self.regions(tokens)
        drawn = self.candidates(tokens, statistics) & (draw(tokens) < statistics[2])
        return torch.where(regions.LN | regions.HP | drawn, 0.0, tokens.ratio.detach())


class KLCov(Covariance, Unclipped):
    """The ratio, with a penalty on its logarithm at the tokens of highest covariance."""

    kind: Literal["kl_cov"] = Field("kl_cov", description="kl_cov = ratio, and a penalty at high covariance.")
    beta: NotNegative = Field(1.0, description="Weight of the penalty |log ratio| at the selected tokens.")

    @property
    def has_penalty(self) -> bool:
        return self.beta > 0

    def simplify(self) -> PolicyLoss:
        return self if self.has_penalty else ImportanceSampling()

    def threshold(self, tokens: Tokens, means: Tensor, number: int) -> Tensor:
        return -_between(-self.covariances(tokens, means)[tokens.mask.bool()], number, ROUNDING)

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        return tokens.ratio.detach()

    def penalty(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        assert statistics is not None
        moved = torch.where(tokens.log_ratio.abs() > ROUNDING, tokens.log_ratio.sign(), 0.0)
        return torch.where(self.covariances(tokens, statistics) > statistics[2], -self.beta * moved, 0.0)


def _between(values: Tensor, number: int, tolerance: float) -> Tensor:
    """Return () a number above the ``number`` smallest of (n,) float64 ``values``, and halfway to the next above.

    Values closer than ``tolerance`` stay together. Infinity if there is no next value.
    """
    ordered = values.sort().values
    gaps = (ordered[number:] - ordered[number - 1 : -1] > tolerance).nonzero()
    if not len(gaps):
        return torch.tensor(torch.inf, dtype=torch.float64, device=values.device)
    first = number - 1 + int(gaps[0])
    return (ordered[first] + ordered[first + 1]) / 2


def draw(tokens: Tokens) -> Tensor:
    """Return (B, T) uniform numbers in [0, 1) by the row's ids and the position; infinity without ids."""
    if tokens.token_ids is None:
        return torch.full_like(tokens.log_probs, torch.inf, dtype=torch.float64)
    positions = torch.arange(tokens.mask.shape[1], device=tokens.mask.device)
    ids = _scramble(tokens.token_ids.long() * 1_000_003 + positions)
    row = torch.where(tokens.mask.bool(), ids, 0).sum(dim=1, keepdim=True)
    return (_scramble(row + positions) & (2**52 - 1)).double() / 2**52


def _scramble(numbers: Tensor) -> Tensor:
    """Return a hash of each int64 number (products wrap around)."""
    for factor in (-4658895280553007687, -7723592293110705685):
        numbers = (numbers ^ (numbers >> 30)) * factor
    return numbers ^ (numbers >> 31)


PAPER = Paper(
    "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", "Cui et al.", "2505.22617"
)
COST = "one forward without gradient over the batch of every step {}(covariances)"
PRESETS = (
    MethodPreset(
        "clip-cov",
        trainer="ClipCovTrainer",
        title="Clip-Cov: no gradient at tokens of high covariance",
        summary="Leaves out a few tokens, drawn from those that lower the entropy most.",
        paper=PAPER,
        golden=("clip_cov",),
        extra_cost=COST.format(""),
        inherits="grpo",
        sets={
            "policy_loss.kind": ("clip_cov", "entropy-mechanism paper, equations 11 and 12"),
            **trust_region(1.0, 1.0, "released recipes (7B and 32B): from 0 to 2; the paper prints no number"),
            "policy_loss.share": (0.0002, "entropy-mechanism paper, section 4.3: r"),
            "policy_loss.cov_low": (1.0, "entropy-mechanism paper, section 4.3"),
            "policy_loss.cov_high": (5.0, "entropy-mechanism paper, section 4.3"),
        },
    ),
    MethodPreset(
        "kl-cov",
        trainer="KLCovTrainer",
        title="KL-Cov: a penalty at tokens of high covariance",
        summary="Holds back the few tokens that lower the entropy most, by a penalty on their log ratio.",
        paper=PAPER,
        golden=("kl_cov",),
        extra_cost=COST.format("except a rollout's first "),
        inherits="grpo",
        sets={
            "policy_loss.kind": ("kl_cov", "entropy-mechanism paper, equations 13 and 14"),
            "policy_loss.share": (0.002, "entropy-mechanism paper, section 4.3: k, 0.002 for 7B and 0.0002 for 32B"),
            "policy_loss.beta": (1.0, "entropy-mechanism paper, section 4.3"),
        },
    ),
)
