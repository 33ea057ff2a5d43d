"""SAPO: a soft gate in place of the clip, which fades with the distance of the ratio from 1.

    l = -A f(r)        f(r) = 4 / tau sigmoid(tau (r - 1))
    F = 4 p (1 - p) r  p = sigmoid(tau (r - 1)), tau = tau_pos for A > 0 and tau_neg otherwise

Gao et al., arXiv:2511.20347. F is 1 at a ratio of 1, whatever tau.

How we differ from the released code: the log ratio is capped at 20 and has no lower clamp (verl: +-20, TRL: none). F is
0 long before, above a ratio of about 800.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Tokens
from rlvr_cli.methods.preset import MethodPreset, Paper
from rlvr_cli.methods.unclipped import Unclipped

Temperature = Annotated[float, Field(gt=0.0, le=100.0)]


class SAPO(Unclipped):
    """The ratio times a soft gate."""

    kind: Literal["sapo"] = Field("sapo", description="sapo = the ratio times a gate that fades away from 1.")
    tau_pos: Temperature = Field(1.0, description="Temperature of the gate at positive advantage; higher fades faster.")
    tau_neg: Temperature = Field(1.05, description="Temperature of the gate at negative advantage.")

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        # exp of more could overflow, and the gate is 0 there.
        ratio = torch.exp(tokens.log_ratio.clamp(max=20.0))
        tau = torch.where(tokens.advantages > 0, self.tau_pos, ratio.new_tensor(self.tau_neg))
        # p (1 - p) without the rounding of 1 - p.
        faded = torch.exp(-(tau * (ratio - 1)).abs())
        return 4 * faded / (1 + faded).square() * ratio


PRESETS = (
    MethodPreset(
        "sapo",
        trainer="SAPOTrainer",
        title="Soft Adaptive Policy Optimization",
        summary="A smooth gate on the ratio instead of a clip; no token loses all of its gradient at once.",
        paper=Paper("Soft Adaptive Policy Optimization", "Gao et al.", "2511.20347"),
        golden=("sapo",),
        inherits="grpo",
        sets={
            "policy_loss.kind": ("sapo", "SAPO paper: the gate f; TRL's and verl's loss of this name"),
            "policy_loss.tau_pos": (1.0, "SAPO paper; default of TRL and verl"),
            "policy_loss.tau_neg": (1.05, "SAPO paper; default of TRL and verl"),
            "aggregation.kind": ("sequence_mean", "SAPO paper: mean over tokens, then completions; TRL; verl"),
        },
    ),
)
