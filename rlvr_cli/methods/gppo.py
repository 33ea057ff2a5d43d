"""GPPO and CE-GPPO: outside the trust region the gradient keeps the weight of the boundary, or a share of it.

    l = -A sg(F) pi / sg(pi)
    F = beta1 (1 - eps_low) in LN, beta2 (1 + eps_high) in HP, r elsewhere

GPPO (beta1 = beta2 = 1) is Klear-Reasoner, arXiv:2508.07629; CE-GPPO is arXiv:2509.20712; F as in the DGPO paper,
arXiv:2603.14389, equations 4 and 5. CE-GPPO's beta1 is 0.75 in its 7B recipe and in the DGPO paper, 0.5 in its 1.5B
recipe, 0.25 by default in its code; beta2 = 1.

How we differ from the released code:

- Its GPPO function reads an undefined name and cannot run. Ours is the general form with both betas 1.
- Its dual clip (no gradient where A < 0 and r > c, c = 10 in the recipes) is off unless ``dual_clip`` is set.
- Every CE-GPPO recipe adds 0.1 times the negative log-likelihood of correct completions, which is not in the published
  objective; we leave it out.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Scale
from rlvr_cli.methods.base import AboveOne, EpsHigh, EpsLow, PolicyLoss, Tokens
from rlvr_cli.methods.grpo import PPOClip, dual_clip_mask
from rlvr_cli.methods.preset import MethodPreset, Paper, trust_region


class GPPO(PolicyLoss):
    """The ratio; beyond the bounds a share of the bound."""

    kind: Literal["gppo"] = Field("gppo", description="gppo = the ratio; beyond the bounds, a multiple of the bound.")
    eps_low: EpsLow = Field(0.2, description="Lower bound of the trust region: ratio 1 - eps_low.")
    eps_high: EpsHigh = Field(0.2, description="Upper bound of the trust region: ratio 1 + eps_high.")
    beta1: Scale = Field(1.0, description="Weight below the region (negative advantage): beta1 (1 - eps_low).")
    beta2: Scale = Field(1.0, description="Weight above the region (positive advantage): beta2 (1 + eps_high).")
    dual_clip: AboveOne | None = Field(
        None,
        description="Dual clip: no gradient where the advantage is negative and the ratio exceeds this; null = off.",
    )

    def simplify(self) -> PolicyLoss:
        if self.beta1 == self.beta2 == 0:
            return PPOClip(eps_low=self.eps_low, eps_high=self.eps_high, dual_clip=self.dual_clip)
        return self

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return self.eps_low, self.eps_high

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        regions = self.regions(tokens)
        weight = torch.where(regions.LN, self.beta1 * (1 - self.eps_low), tokens.ratio.detach())
        weight = torch.where(regions.HP, self.beta2 * (1 + self.eps_high), weight)
        return weight if self.dual_clip is None else torch.where(dual_clip_mask(tokens, self.dual_clip), 0.0, weight)


PAPER_1 = Paper(
    "Klear-Reasoner: Advancing Reasoning Capability via Gradient-Preserving Clipping Policy Optimization",
    "Su et al.",
    "2508.07629",
)
PAPER_2 = Paper(
    "CE-GPPO: Coordinating Entropy via Gradient-Preserving Clipping Policy Optimization in Reinforcement Learning",
    "Su et al.",
    "2509.20712",
)
PRESETS = (
    MethodPreset(
        "gppo",
        trainer="GPPOTrainer",
        title="Gradient-Preserving Policy Optimization",
        summary="Tokens beyond the bounds keep the weight they have at the bound.",
        paper=PAPER_1,
        golden=("gppo",),
        inherits="grpo",
        sets={
            "policy_loss.kind": ("gppo", "DGPO paper, equation 4"),
            **trust_region(0.2, 0.2, "DGPO paper, table 12: 0.2 on both sides for every method"),
            "policy_loss.beta1": (1.0, "DGPO paper, equation 4: the bound itself"),
            "policy_loss.beta2": (1.0, "DGPO paper, equation 4: the bound itself"),
            "policy_loss.dual_clip": (
                None,
                "off: not in the formula (DGPO paper, equations 4 and 5); the released code adds verl's, 10 in its "
                "recipes",
            ),
            "aggregation.kind": ("token_mean", "DGPO paper, equation 1; released code"),
            "kl.beta": (0.0, "DGPO paper, appendix B.4, common configurations: KL coefficient 0"),
        },
    ),
    MethodPreset(
        "ce-gppo",
        trainer="CEGPPOTrainer",
        title="Coordinating Entropy via Gradient-Preserving Policy Optimization",
        summary="GPPO with a separate factor for each bound: beta1 below, beta2 above.",
        paper=PAPER_2,
        golden=("ce_gppo",),
        inherits="gppo",
        sets={
            "policy_loss.kind": ("gppo", "DGPO paper, equation 5: GPPO with two factors"),
            "policy_loss.beta1": (
                0.75,
                "DGPO paper, table 12 and section 5.1 (all sizes); released recipes: 0.75 for 7B, 0.5 for 1.5B",
            ),
            "policy_loss.beta2": (1.0, "DGPO paper, table 12; released recipes"),
        },
    ),
)
