"""The clipped importance ratio of PPO, GRPO, DAPO and Dr. GRPO.

    l = max(-A r, -A clip(r, 1 - eps_low, 1 + eps_high))        r = pi / pi_old

The gradient is -F A grad log pi with

    F = r,  but 0 in LN (r < 1 - eps_low, A < 0) and in HP (r > 1 + eps_high, A > 0).

Schulman et al., arXiv:1707.06347, equation 7; DeepSeekMath (GRPO), arXiv:2402.03300, equation 3; eps_high above eps_low
is DAPO's clip-higher, arXiv:2503.14476, equation 10. GRPO: 0.2 on both sides; DAPO: 0.2 and 0.28.

How we differ from the released code: verl adds a dual clip (F = 0 where r > c and A < 0; c = 3 by default, 10 in the
recipes of DAPO and AR-Lopti) to every run; here it is off unless ``dual_clip`` is set, as in the formula above. verl
clamps the log ratio to +-20; we do not.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.preset import MethodPreset, Paper
from rlvr_cli.methods.tokens import Tokens
from rlvr_cli.methods.weight import AboveOne, EpsHigh, EpsLow, TokenWeight


class ClippedRatio(TokenWeight):
    """The importance ratio, cut off outside the trust region."""

    kind: Literal["clip"] = Field("clip", description="clip = the ratio, no gradient where it left the trust region.")
    eps_low: EpsLow = Field(0.2, description="The trust region begins at 1 - eps_low.")
    eps_high: EpsHigh = Field(0.2, description="The trust region ends at 1 + eps_high.")
    dual_clip: AboveOne | None = Field(
        None, description="No gradient where the advantage is negative and the ratio above this; null = off."
    )

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return self.eps_low, self.eps_high

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        where = self.regions(tokens)
        ratio = tokens.ratio.detach()
        cut = where.LN | where.HP
        if self.dual_clip is not None:
            cut = cut | dual_clipped(tokens, self.dual_clip)
        return torch.where(cut, 0.0, ratio)


def dual_clipped(tokens: Tokens, limit: float) -> Tensor:
    """(B, T) where the advantage is negative and the ratio above ``limit``."""
    return (tokens.ratio.detach() > limit) & (tokens.advantages < 0)


PAPER_1 = Paper(
    "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", "Shao et al.", "2402.03300"
)
PAPER_2 = Paper("DAPO: An Open-Source LLM Reinforcement Learning System at Scale", "Yu et al.", "2503.14476")
PRESETS = (
    MethodPreset(
        "grpo",
        title="Group Relative Policy Optimization",
        summary="The clipped ratio of PPO with advantages from the rewards of the prompt's own group.",
        paper=PAPER_1,
        golden=("grpo", "advantages"),
        extra_cost="none: every cost is stated over this one",
        sets={
            "advantage.kind": ("group", "DeepSeekMath, section 4.1.2: the reward against those of the same prompt"),
            "advantage.scale": ("std", "DeepSeekMath, section 4.1.2: divided by the group's standard deviation"),
            "weight.kind": ("clip", "DeepSeekMath, equation 3"),
            "weight.eps_low": (
                0.2,
                "PPO paper (arXiv:1707.06347), table 1, where 0.2 scores best; verl's default; DGPO paper, table 12",
            ),
            "weight.eps_high": (
                0.2,
                "PPO paper (arXiv:1707.06347), table 1, where 0.2 scores best; verl's default; DGPO paper, table 12",
            ),
            "weight.dual_clip": (
                None,
                "off: no term of the paper's formula; verl adds it to every run (3; 10 in recipes), with no gradient "
                "where the advantage is negative and the ratio above it",
            ),
            "aggregation.kind": (
                "token_mean",
                "AR-Lopti paper, equation 1, and DGPO paper, equation 10; DeepSeekMath, equation 3, and ACPO paper, "
                "equation 1, divide by each row's length first: method.aggregation=sequence_mean",
            ),
            "schedule.kind": ("one_pass", "every token in each update, as in the paper's objective"),
            "kl.beta": (0.0, "DGPO paper, appendix B.4 (0), and DAPO; DeepSeekMath has 0.04, the AR-Lopti paper 0.001"),
        },
    ),
    MethodPreset(
        "dapo",
        title="Decoupled Clip and Dynamic Sampling Policy Optimization",
        summary="GRPO with a higher upper bound (clip-higher) and one divisor for all tokens.",
        paper=PAPER_2,
        golden=("dapo",),
        extra_cost="none; with rollout.dynamic_sampling the sampling of the prompts that replace others",
        sets={
            "advantage.kind": ("group", "DeepSeekMath, section 4.1.2: the reward against those of the same prompt"),
            "advantage.scale": ("std", "DeepSeekMath, section 4.1.2: divided by the group's standard deviation"),
            "weight.kind": ("clip", "DAPO paper, equation 8"),
            "weight.eps_low": (0.2, "DAPO paper, section 4.1"),
            "weight.eps_high": (0.28, "DAPO paper, section 4.1 (clip-higher)"),
            "weight.dual_clip": (None, "off: no term of DAPO's equation 8; 10 in verl's DAPO recipe"),
            "aggregation.kind": ("token_mean", "DAPO paper, equation 8 (token-level loss)"),
            "schedule.kind": ("one_pass", "every token in each update, as in the paper's objective"),
            "kl.beta": (0.0, "DAPO paper, section 2.3: no KL penalty"),
        },
    ),
)
