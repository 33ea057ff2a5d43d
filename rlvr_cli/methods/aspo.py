"""ASPO: the reciprocal ratio for positive advantages, the ratio for negative ones, both softly capped.

    A >= 0:  F = min(1/r, c+) where r <= 1 + eps, else 0
    A <  0:  F = min(r, c-)   where r >= 1 - eps, else 0

Wang et al., arXiv:2510.06062; F as in the DGPO paper, arXiv:2603.14389, equation 6; c+ = c- = 3, eps = 0.2. The loss
value is -A / q with q = min(r, 1 + eps) for A >= 0, and -A q with q = max(r, 1 - eps) for A < 0; beyond the caps it
is -A c log pi. ``eps_high_entropy: 0.4`` gives tokens above the 80% quantile of the completion's entropies (current
policy) wider bounds, as in the released code; it is off by default, as in the DGPO paper's comparison.

How we differ from the released code: it clamps the log ratio to +-20; we don't.

How we differ from the papers: equation 6 of the DGPO paper prints 1/r for both signs, and 1 - eps' and 1 + eps' as the
weights far out. Its table 12 gives eps' as 0.33 and 3. Like ASPO's code, we read these as the ratios from which on the
weight stays 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import AboveOne, Advantage, EpsLow, OpenShare, PolicyLoss, Tokens
from rlvr_cli.methods.preset import MethodPreset, Paper


class ASPO(PolicyLoss):
    """1/ratio for positive, ratio for negative advantages."""

    kind: Literal["aspo"] = Field("aspo", description="aspo = 1/ratio for positive, ratio for negative advantages.")
    eps: EpsLow = Field(0.2, description="Half width of the trust region.")
    eps_high_entropy: EpsLow | None = Field(
        None, description="Half width on the row's high-entropy tokens; null = eps for all tokens."
    )
    entropy_quantile: OpenShare = Field(
        0.8, description="Quantile of the row's entropies above which a token counts as high-entropy."
    )
    soft_clip_positive: AboveOne = Field(
        3.0, description="Largest weight at positive advantage (3 is reached at ratio 1/3)."
    )
    soft_clip_negative: AboveOne = Field(3.0, description="Largest weight at negative advantage.")

    def unused(self, advantage: Advantage) -> Iterator[tuple[str, str, str]]:
        if self.eps_high_entropy is None:
            reason = "every token has the same bound. Set method.policy_loss.eps_high_entropy"
            yield "method.policy_loss.entropy_quantile", "method.policy_loss.eps_high_entropy", reason

    def simplify(self) -> PolicyLoss:
        if self.eps_high_entropy in (None, self.eps):
            return self.replace(eps_high_entropy=None, entropy_quantile=0.8)
        return self

    @property
    def needs_entropies(self) -> bool:
        return self.eps_high_entropy is not None

    @property
    def reads_whole_rows(self) -> bool:
        return self.needs_entropies

    def low_entropy_mask(self, tokens: Tokens) -> Tensor:
        """Return (B, T) True for valid tokens whose entropy is at most their row's quantile (linear interpolation)."""
        if tokens.entropies is None:
            raise ValueError("ASPO with eps_high_entropy needs the entropies of the tokens")
        valid = tokens.mask.bool()
        entropies = tokens.entropies.detach()
        of_row = torch.where(valid, entropies, torch.nan).double()
        threshold = torch.nanquantile(of_row, self.entropy_quantile, dim=1, keepdim=True)
        return valid & (entropies <= threshold)

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float | Tensor, float | Tensor]:
        if self.eps_high_entropy is None:
            return self.eps, self.eps
        eps = torch.where(self.low_entropy_mask(tokens), self.eps, self.eps_high_entropy).to(tokens.log_probs.dtype)
        return eps, eps

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        eps, _ = self.bounds(tokens)
        log_ratio = (tokens.log_probs - tokens.old_log_probs).detach()
        ratio = torch.exp(log_ratio)
        positive = torch.where(ratio <= 1 + eps, torch.exp(-log_ratio).clamp(max=self.soft_clip_positive), 0.0)
        negative = torch.where(ratio >= 1 - eps, ratio.clamp(max=self.soft_clip_negative), 0.0)
        return torch.where(tokens.advantages >= 0, positive, negative)


PAPER = Paper("ASPO: Asymmetric Importance Sampling Policy Optimization", "Wang et al.", "2510.06062")
PRESETS = (
    MethodPreset(
        "aspo",
        trainer="ASPOTrainer",
        title="Asymmetric Importance Sampling Policy Optimization",
        summary="Weighs tokens of positive advantage by the reciprocal ratio, so tokens that fell gain most.",
        paper=PAPER,
        golden=("aspo",),
        extra_cost="one reference-model forward per rollout (KL penalty); with method.policy_loss.eps_high_entropy, "
        "token entropies",
        inherits="grpo",
        sets={
            "policy_loss.kind": ("aspo", "released code; DGPO paper, equation 6"),
            "policy_loss.eps": (0.2, "DGPO paper, table 12; released code (tokens of low entropy)"),
            "policy_loss.eps_high_entropy": (
                None,
                "off, as in the DGPO paper's comparison; released code: 0.4 on the row's high-entropy tokens",
            ),
            "policy_loss.entropy_quantile": (0.8, "released code: the quantile 0.8 of each row's entropies"),
            "policy_loss.soft_clip_positive": (
                3.0,
                "DGPO paper, table 12: ratio 0.33, whose reciprocal is 3; released code",
            ),
            "policy_loss.soft_clip_negative": (3.0, "DGPO paper, table 12; released code"),
            "aggregation.kind": ("token_mean", "DGPO paper, equation 1; released code (always token-mean)"),
            "kl.beta": (0.001, "released code's recipe (k3); the DGPO paper's comparison has 0"),
        },
    ),
)
