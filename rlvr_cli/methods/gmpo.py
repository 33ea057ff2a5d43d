"""GMPO: the geometric mean of a completion's clipped ratios in place of their arithmetic mean.

    s = exp(mean over the completion's tokens of log r')        l = -A s
    log r' = min(log r, eps_high) for A > 0, max(log r, -eps_low) for A < 0
    F = s, but 0 at clipped tokens (log r < -eps_low and A < 0, log r > eps_high and A > 0)

Zhao et al., arXiv:2507.20673, equation 4 and algorithm 1, with ``sequence_mean``: the 1 / |o| is that of the exponent.
A token without advantage, as outside a Lopti pass, is clipped as the others of its completion.

How we differ from the paper: A is GRPO's; the paper's experiments follow Dr. GRPO's setup.

How we differ from the released code: weights for another sampler (``rollout.correction``) multiply F by their mean over
the completion, in verl's ``geo_mean`` by their geometric mean, and in TRL's GMPOTrainer not at all.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import PolicyLoss, Tokens
from rlvr_cli.methods.preset import MethodPreset, Paper, trust_region

Width = Annotated[float, Field(ge=0.0, le=20.0)]


class GMPO(PolicyLoss):
    """The geometric mean of the row's clipped ratios, for its unclipped tokens."""

    kind: Literal["gmpo"] = Field("gmpo", description="gmpo = the geometric mean of the row's clipped ratios.")
    eps_low: Width = Field(0.4, description="Lower bound of a token's log ratio: -eps_low.")
    eps_high: Width = Field(0.4, description="Upper bound of a token's log ratio: eps_high.")

    per_sequence: ClassVar[bool] = True

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        """Return the bounds of the ratio."""
        return -math.expm1(-self.eps_low), math.expm1(self.eps_high)

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        valid, log_ratio = tokens.mask.bool(), tokens.log_ratio
        signs = torch.where(valid, tokens.advantages.sign(), 0.0)
        signs = torch.where(signs == 0, signs.sum(dim=1, keepdim=True), signs)
        clipped = torch.where(signs > 0, log_ratio.clamp(max=self.eps_high), log_ratio.clamp(min=-self.eps_low))
        mean = clipped.sum(dim=1, keepdim=True) / valid.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.where(clipped == log_ratio, torch.exp(mean), 0.0)


PRESETS = (
    MethodPreset(
        "gmpo",
        trainer="GMPOTrainer",
        title="Geometric-Mean Policy Optimization",
        summary="The geometric mean of a completion's ratios, clipped token by token in the logarithm.",
        paper=Paper("Geometric-Mean Policy Optimization", "Zhao et al.", "2507.20673"),
        golden=("gmpo",),
        inherits="grpo",
        sets={
            "policy_loss.kind": ("gmpo", "GMPO paper, equation 4"),
            **trust_region(0.4, 0.4, "GMPO paper, section 3 (ii): ratios from exp(-0.4) to exp(0.4)"),
            "aggregation.kind": ("sequence_mean", "GMPO paper, equation 6: each completion's length, then completions"),
        },
    ),
)
