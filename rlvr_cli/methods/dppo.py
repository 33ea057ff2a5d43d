"""DPPO: the ratio, without gradient where the token's probability has moved too far in the advantage's direction.

    F = min(r, c), but 0 where pi - pi_old < -d_low and A < 0, and where pi - pi_old > d_high and A > 0
    P = -2 tau log r

Qi et al., arXiv:2602.04879, equations 12, 13 (binary total variation) and 23. P (``drift_penalty``, off by default) is
prime-rl's: it adds tau log^2 r to every token's loss, after Kimi K2.5 (arXiv:2602.02276).

How we differ from the paper: c is 5 in its appendix E and absent in its other experiments (C.1). Its pi_old is the
sampler's probability, ours the trainer's.

How we differ from the released code: prime-rl has no c, tau 1e-3, and the sampler's pi_old; verl has c = 20, no tau,
and clamps the log ratio to +-20.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import NotNegative
from rlvr_cli.methods.base import AboveOne, EpsLow, PolicyLoss, Regions, Tokens, regions
from rlvr_cli.methods.cispo import CISPO
from rlvr_cli.methods.preset import MethodPreset, Paper
from rlvr_cli.methods.unclipped import ImportanceSampling


class DPPO(PolicyLoss):
    """The ratio, cut off where the probability leaves its trust region."""

    kind: Literal["dppo"] = Field("dppo", description="dppo = the ratio; no gradient where a probability moved far.")
    d_low: EpsLow = Field(0.2, description="Largest fall of a token's probability at negative advantage.")
    d_high: EpsLow = Field(0.2, description="Largest rise of a token's probability at positive advantage.")
    max_ratio: AboveOne | None = Field(20.0, description="Largest weight of a token, the paper's c; null = none.")
    drift_penalty: NotNegative = Field(0.0, description="Weight of log(ratio)^2 in every token's loss.")

    @property
    def has_penalty(self) -> bool:
        return self.drift_penalty > 0

    def simplify(self) -> PolicyLoss:
        # No probability moves by more than 1.
        if self.d_low < 1 or self.d_high < 1 or self.has_penalty:
            return self
        return ImportanceSampling() if self.max_ratio is None else CISPO(eps_low=None, eps_high=self.max_ratio - 1)

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the bounds of the ratio, d / pi_old."""
        old_probs = tokens.old_probs.detach().clamp(min=torch.finfo(tokens.old_log_probs.dtype).tiny)
        return self.d_low / old_probs, self.d_high / old_probs

    def regions(self, tokens: Tokens, statistics: Tensor | None = None) -> Regions:
        """Assign tokens by the change of their probability."""
        change = torch.exp(tokens.log_probs.detach()) - tokens.old_probs
        return regions(tokens, self.d_low, self.d_high, 1 + change)

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        regions, ratio = self.regions(tokens), tokens.ratio.detach().clamp(max=self.max_ratio or torch.inf)
        return torch.where(regions.LN | regions.HP, 0.0, ratio)

    def penalty(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        return -2 * self.drift_penalty * tokens.log_ratio


REGION = "DPPO paper, appendix E: 0.2, and 0.15 with LoRA; prime-rl's default"
PRESETS = (
    MethodPreset(
        "dppo",
        trainer="DPPOTrainer",
        title="Divergence Proximal Policy Optimization",
        summary="A trust region of probabilities instead of ratios: rare tokens move freely, likely ones do not.",
        paper=Paper("Rethinking the Trust Region in LLM Reinforcement Learning", "Qi et al.", "2602.04879"),
        golden=("dppo",),
        inherits="grpo",
        sets={
            "advantage.scale": ("none", "DPPO paper, appendix C.1: GRPO's without the standard deviation; prime-rl"),
            "policy_loss.kind": ("dppo", "DPPO paper, equations 12 and 13: binary total variation"),
            "policy_loss.d_low": (0.2, REGION),
            "policy_loss.d_high": (0.2, REGION),
            "policy_loss.max_ratio": (20.0, "verl; DPPO paper: 5 in appendix E, none in C.1; prime-rl: none"),
            "policy_loss.drift_penalty": (0.0, "not in the paper; prime-rl: 0.001"),
            "aggregation.kind": ("token_mean", "verl and prime-rl; equation 12 adds up the tokens of a completion"),
        },
    ),
)
