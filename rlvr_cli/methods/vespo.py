"""VESPO: one weight for all tokens of a completion, a smooth function of the product of their ratios.

    F = phi(w) = w^k exp(lambda (1 - w))        w = product of the completion's ratios, not normalised by length
    (k, lambda) = (2, 3) for A >= 0, (3, 2) for A < 0

Shen et al., arXiv:2602.10693, equation 20 and section 4.1. phi(1) = 1, its maximum is at w = k / lambda, and it goes to
0 on both sides: a product of ratios beyond the range of floating-point numbers gives 0.

How we differ from the released code: it and TRL clamp each token's log ratio to +-20, and log w to 20 and to log 1e-8,
where phi is below 1e-14. Weights for another sampler (``rollout.correction``) multiply F by their mean over the
completion; in the paper w is relative to the sampler, so it and TRL multiply w by the product of the tokens' weights.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Scale
from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.preset import MethodPreset, Paper
from rlvr_cli.methods.unclipped import Unclipped

Decay = Annotated[float, Field(gt=0.0, le=100.0)]


class VESPO(Unclipped):
    """A smooth function of the product of the row's ratios."""

    kind: Literal["vespo"] = Field("vespo", description="vespo = one smooth weight of the product of a row's ratios.")
    k_pos: Scale = Field(2.0, description="Power of the product at nonnegative advantage: fades below 1.")
    lambda_pos: Decay = Field(3.0, description="Decay at nonnegative advantage: fades above 1.")
    k_neg: Scale = Field(3.0, description="Power of the product at negative advantage.")
    lambda_neg: Decay = Field(2.0, description="Decay at negative advantage.")

    per_sequence: ClassVar[bool] = True

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        log_w = tokens.log_ratio.sum(dim=1, keepdim=True, dtype=torch.float64)
        positive = tokens.advantages >= 0
        power = torch.where(positive, self.k_pos, log_w.new_tensor(self.k_neg))
        decay = torch.where(positive, self.lambda_pos, log_w.new_tensor(self.lambda_neg))
        # -expm1 is 1 - w; an infinite w gives exp(-inf) = 0.
        weight = torch.exp(power * log_w - decay * torch.expm1(log_w))
        return weight.to(tokens.log_probs.dtype).expand_as(tokens.log_probs)


PAPER = Paper(
    "Variational Sequence-level Soft Policy Optimization for Off-Policy LLM Training", "Shen et al.", "2602.10693"
)
SHAPE = "VESPO paper, section 4.1; released code and TRL"
PRESETS = (
    MethodPreset(
        "vespo",
        trainer="VESPOTrainer",
        title="Variational Sequence-level Soft Policy Optimization",
        summary="One smooth weight per completion, from the product of its ratios; stale completions fade out.",
        paper=PAPER,
        golden=("vespo",),
        inherits="grpo",
        sets={
            "policy_loss.kind": ("vespo", "VESPO paper, equation 20"),
            "policy_loss.k_pos": (2.0, SHAPE),
            "policy_loss.lambda_pos": (3.0, SHAPE),
            "policy_loss.k_neg": (3.0, SHAPE),
            "policy_loss.lambda_neg": (2.0, SHAPE),
            "aggregation.kind": ("token_mean", "released recipes and TRL; equation 20: the sum over a completion"),
        },
    ),
)
