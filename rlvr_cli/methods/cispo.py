"""CISPO: the clipped importance ratio as a constant weight, so no token loses its gradient.

    l = -sg(w) A log pi        w = clip(r, 1 - eps_low, 1 + eps_high)
    F = 1 - eps_low in LN and LP, 1 + eps_high in HP and HN, r elsewhere

MiniMax-M1, arXiv:2506.13585, equations 4 and 5; F as in the DGPO paper, arXiv:2603.14389, equation 3, whose 0.2 on both
sides (table 12) is our default. The loss value depends on log pi and cannot be compared with that of a clipped ratio.

How we differ from the released code:

- verl's example sets eps_low = 10, which means no lower bound (``eps_low: null`` here).
- TRL's eps_high is the largest weight itself (1 + eps_high here), and it has no lower bound.
- verl clamps the log ratio to +-20; we don't.
- With several updates a rollout TRL divides each step by the rollout's tokens over the number of steps, we by the
  tokens of the step, as verl.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor
from rlvr_cli.methods.base import EpsHigh, EpsLow, PolicyLoss, Tokens
from rlvr_cli.methods.preset import MethodPreset, Paper


class CISPO(PolicyLoss):
    """The ratio, clipped, for every token."""

    kind: Literal["cispo"] = Field("cispo", description="cispo = the ratio, clipped, for every token.")
    eps_low: EpsLow | None = Field(0.2, description="Lower bound of the weight: 1 - eps_low; null = none.")
    eps_high: EpsHigh = Field(0.2, description="Upper bound of the weight: 1 + eps_high.")

    def simplify(self) -> PolicyLoss:
        return self.replace(eps_low=None) if self.eps_low == 1 else self

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return 1.0 if self.eps_low is None else self.eps_low, self.eps_high

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        low, high = self.bounds(tokens)
        return tokens.ratio.detach().clamp(1 - low, 1 + high)


PAPER = Paper("MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", "MiniMax", "2506.13585")
PRESETS = (
    MethodPreset(
        "cispo",
        trainer="CISPOTrainer",
        title="Clipped IS-weight Policy Optimization",
        summary="The clipped ratio as a constant weight, so no token loses its gradient.",
        paper=PAPER,
        golden=("cispo",),
        inherits="grpo",
        sets={
            "policy_loss.kind": ("cispo", "DGPO paper, equation 3; MiniMax-M1's objective"),
            "policy_loss.eps_low": (
                0.2,
                "DGPO paper, table 12: 0.2 on both sides for every method; MiniMax-M1 has no lower bound (null)",
            ),
            "policy_loss.eps_high": (
                0.2,
                "DGPO paper, table 12: 0.2 on both sides for every method; MiniMax-M1 tunes it and prints no number",
            ),
            "aggregation.kind": ("token_mean", "MiniMax-M1's objective; DGPO paper, equation 1"),
            "kl.beta": (0.0, "DGPO paper, appendix B.4, common configurations: KL coefficient 0"),
        },
    ),
)
