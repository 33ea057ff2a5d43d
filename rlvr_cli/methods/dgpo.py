"""DGPO: outside the trust region the weight on grad pi decays, polynomially below it and as a root above it.

    l = -A sg(F) pi / sg(pi)
    F = r (r / (1 - eps_low))^n       in LN:  r^(n+1) / (1 - eps_low)^n
    F = r (r / (1 + eps_high))^(-1/m) in HP:  (1 + eps_high)^(1/m) r^(1 - 1/m)
    F = r                             elsewhere

Fu et al., arXiv:2603.14389, equations 9 and 10, where it is the weight on grad pi, W = F / pi. F is continuous at the
bounds. m = 1 is GPPO above the region; n = 0 has no lower bound. The paper uses 0.2 on both sides, n = 1 and m = 2 for
7B and 14B, n = m = 2 for 1.5B.

How we differ from the released code: it clamps the log ratio to +-20 outside LN and HP; we don't. It reports a
dual-clip share although its DGPO mode clips no such token; we report none.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import EpsHigh, EpsLow, PolicyLoss, Tokens
from rlvr_cli.methods.preset import MethodPreset, Paper, trust_region


class DGPO(PolicyLoss):
    """Polynomial decay below, radical decay above the trust region."""

    kind: Literal["dgpo"] = Field("dgpo", description="dgpo = polynomial decay below, radical decay above the region.")
    eps_low: EpsLow = Field(0.2, description="Lower bound of the trust region: ratio 1 - eps_low.")
    eps_high: EpsHigh = Field(0.2, description="Upper bound of the trust region: ratio 1 + eps_high.")
    n: Annotated[float, Field(ge=0.0, le=16.0)] = Field(1.0, description="Power of the decay below the region.")
    m: Annotated[float, Field(ge=1.0, le=16.0)] = Field(2.0, description="Root of the decay above the region.")

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return self.eps_low, self.eps_high

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        regions = self.regions(tokens)
        log_ratio = (tokens.log_probs - tokens.old_log_probs).detach()
        lowest = math.log(1 - self.eps_low) if self.eps_low < 1 else -math.inf
        # Both exponents are cut at 0, their value at the bound: neither power can overflow, in its region or outside.
        decay_below = self.n * (log_ratio - lowest).clamp(max=0)
        decay_above = -(log_ratio - math.log1p(self.eps_high)).clamp(min=0) / self.m
        exponent = torch.where(regions.LN, decay_below, torch.where(regions.HP, decay_above, 0.0))
        return torch.exp(log_ratio + exponent)


PAPER = Paper(
    "From log pi to pi: Taming Divergence in Soft Clipping via Bilateral Decoupled Decay of Probability Gradient "
    "Weight",
    "Fu et al.",
    "2603.14389",
)
PRESETS = (
    MethodPreset(
        "dgpo",
        trainer="DGPOTrainer",
        title="Decoupled Gradient Policy Optimization",
        summary="Beyond the bounds the weight on grad pi decays: as a power on the left, as a root on the right.",
        paper=PAPER,
        golden=("dgpo",),
        inherits="grpo",
        sets={
            "advantage.kind": ("group", "DGPO paper, section 3, following GRPO"),
            "policy_loss.kind": ("dgpo", "DGPO paper, equations 9 and 10"),
            **trust_region(0.2, 0.2, "DGPO paper, table 12: 0.2 on both sides for every method"),
            "policy_loss.n": (1.0, "DGPO paper, table 12 and section 5.3: 1 for 7B and 14B, 2 for 1.5B"),
            "policy_loss.m": (2.0, "DGPO paper, table 12 and section 5.3"),
            "aggregation.kind": ("token_mean", "DGPO paper, equation 10"),
            "kl.beta": (0.0, "DGPO paper, appendix B.4, common configurations: KL coefficient 0"),
        },
    ),
)
