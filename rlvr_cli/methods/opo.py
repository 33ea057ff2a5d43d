"""OPO: the reward minus the group's mean reward, weighted by length.

    b = sum of |y_j| R_j / sum of |y_j|        over the prompt's completions j
    A = R - b

Hao et al., "On-Policy RL with Optimal Reward Baseline", arXiv:2505.23585: b minimises the variance of the
gradient if the squared norm of a completion's grad log pi grows with its length |y|. There is no division by a standard
deviation. |y| counts the trained tokens: a completion dropped for its length (``rollout.drop_truncated``) has none.

How we differ from the paper: it makes one update per rollout, with the loss -A log pi. Here the loss is a token mean
with clip 0.2 for further updates, which has the same gradient at one update.

How we differ from the released code (verl): equal rewards give exactly 0; a group of one, which verl trains on its
reward, is refused.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.preset import MethodPreset, Paper


class OPOAdvantage(Advantage):
    """The reward minus the group's length-weighted mean; rows without a reward get 0 and count in no baseline."""

    kind: Literal["opo"] = Field("opo", description="opo = reward minus the group's mean, weighted by length.")

    @property
    def needs_group(self) -> tuple[str, str] | None:
        return "method.advantage.kind", "method.advantage.kind=opo compares the completions of a prompt"

    def advantages(self, rollout: Rollout) -> Tensor:
        grouped = rollout.rewards.double().view(-1, rollout.group_size)
        known = ~grouped.isnan()
        lengths = torch.where(known, rollout.mask.sum(dim=1).double().view_as(grouped), 0.0)
        # Relative to a reward of the group, so that equal rewards give exactly 0.
        lowest = grouped.nan_to_num(nan=torch.inf).amin(dim=1, keepdim=True).nan_to_num(posinf=0.0)
        excess = torch.where(known, grouped - lowest, 0.0)
        weighted = (lengths * excess).sum(dim=1, keepdim=True)
        baseline = weighted / lengths.sum(dim=1, keepdim=True).clamp(min=1)
        values = torch.where(known, excess - baseline, 0.0)
        return values.reshape(-1, 1).to(rollout.rewards.dtype)


PAPER = Paper("On-Policy RL with Optimal Reward Baseline", "Hao et al.", "2505.23585")
PRESETS = (
    MethodPreset(
        "opo",
        trainer="OPOTrainer",
        title="On-Policy RL with Optimal Reward Baseline",
        summary="Each reward minus the group's mean reward, weighted by length.",
        paper=PAPER,
        golden=("opo",),
        inherits="grpo",
        sets={"advantage.kind": ("opo", "OPO paper: the length-weighted mean as the baseline")},
    ),
)
