"""GSPO: one length-normalised ratio for all tokens of a completion, clipped.

    s = exp(mean over the completion's tokens of (log pi - log pi_old))
    l = max(-A s', -A clip(s', 1 - eps_low, 1 + eps_high))        s' = sg(s) pi / sg(pi)
    F = s, but 0 where s < 1 - eps_low and A < 0, and where s > 1 + eps_high and A > 0

Zheng et al., arXiv:2507.18071, equations 5 and 7, in the token form of equation 14, with eps 3e-4 and 4e-4 and
``sequence_mean``.

As in verl, log s is capped at 10, with no gradient beyond (the paper has no cap), and there is no dual clip.

How we differ from the released code:

- A completion's tokens share their weight for another sampler (``rollout.correction``), the mean of the tokens'
  weights, as in TRL. verl multiplies each token by its own weight.
- With ``kl.bias_correction`` the KL term of a token has that token's ratio, as in DeepSeek-V3.2; TRL takes s.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import EpsHigh, EpsLow, PolicyLoss, Regions, Tokens, regions
from rlvr_cli.methods.preset import MethodPreset, Paper


class GSPO(PolicyLoss):
    """The sequence's ratio, cut off outside the trust region."""

    kind: Literal["gspo"] = Field("gspo", description="gspo = one clipped ratio for all tokens of a row.")
    eps_low: EpsLow = Field(3e-4, description="Lower bound of the trust region: ratio 1 - eps_low.")
    eps_high: EpsHigh = Field(4e-4, description="Upper bound of the trust region: ratio 1 + eps_high.")
    max_log_ratio: Annotated[float, Field(gt=0.0)] = Field(10.0, description="Upper bound of the sequence's log ratio.")

    per_sequence: ClassVar[bool] = True

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return self.eps_low, self.eps_high

    def log_sequence_ratio(self, tokens: Tokens) -> Tensor:
        """Return (B, 1) log s before its bound; 0 for rows without valid tokens."""
        lengths = tokens.mask.bool().sum(dim=1, keepdim=True)
        return tokens.log_ratio.sum(dim=1, keepdim=True) / lengths.clamp(min=1)

    def regions(self, tokens: Tokens, statistics: Tensor | None = None) -> Regions:
        """Assign all tokens of a row to the region of the sequence's ratio."""
        ratio = torch.exp(self.log_sequence_ratio(tokens).clamp(max=self.max_log_ratio))
        return regions(tokens, self.eps_low, self.eps_high, ratio)

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        regions = self.regions(tokens)
        log_ratio = self.log_sequence_ratio(tokens)
        cut = regions.LN | regions.HP | (log_ratio > self.max_log_ratio)
        return torch.where(cut, 0.0, torch.exp(log_ratio.clamp(max=self.max_log_ratio)))


PAPER = Paper("Group Sequence Policy Optimization", "Zheng et al.", "2507.18071")
PRESETS = (
    MethodPreset(
        "gspo",
        trainer="GSPOTrainer",
        title="Group Sequence Policy Optimization",
        summary="One length-normalised ratio for the whole completion, clipped as a whole.",
        paper=PAPER,
        golden=("gspo",),
        inherits="grpo",
        sets={
            "advantage.kind": ("group", "GSPO paper: the advantage is GRPO's"),
            "policy_loss.kind": ("gspo", "GSPO paper, equations 5 and 7"),
            "policy_loss.eps_low": (0.0003, "GSPO paper, section 5.1"),
            "policy_loss.eps_high": (0.0004, "GSPO paper, section 5.1"),
            "policy_loss.max_log_ratio": (
                10.0,
                "verl's compute_policy_loss_gspo; not in the paper, and out of reach of ordinary ratios",
            ),
            "aggregation.kind": ("sequence_mean", "GSPO paper, equation 5: the mean over completions"),
            "aggregation.sequences": ("valid", "as verl: a completion without a valid token is not counted"),
            "kl.beta": (0.0, "no KL term in the GSPO paper's equation 5"),
        },
    ),
)
