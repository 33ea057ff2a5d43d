"""OPO: the reward minus the group's mean reward, weighted by length.

    b = sum of |y_j| R_j / sum of |y_j|        over the prompt's completions j
    A = R - b

Hao et al., arXiv:2505.23585: b minimises the variance of the gradient if the squared norm of a completion's
grad log pi grows with its length |y|. |y| counts the trained tokens: a completion dropped for its length
(``rollout.drop_truncated``) has none.

How we differ from the paper: it makes one update per rollout, with the loss -A log pi. Here the loss is a token mean
with clip 0.2 for further updates, which has the same gradient at one update.

How we differ from the released code (verl): equal rewards give exactly 0.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.preset import MethodPreset, Paper


class OPOAdvantage(Advantage):
    """The reward minus the group's length-weighted mean; rows without a reward get 0 and count in no baseline."""

    kind: Literal["opo"] = Field("opo", description="opo = reward minus the group's mean, weighted by length.")

    compares_group: ClassVar[bool] = True

    def advantages(self, rollout: Rollout) -> Tensor:
        grouped = rollout.rewards.double().view(-1, rollout.group_size)
        excluded = grouped.isnan()
        lengths = rollout.mask.sum(dim=1).double().view_as(grouped).masked_fill(excluded, 0.0)
        # Relative to a reward of the group, so that equal rewards give exactly 0.
        lowest = grouped.masked_fill(excluded, torch.inf).amin(dim=1, keepdim=True)
        excess = (grouped - lowest).masked_fill(excluded, 0.0)
        baseline = (lengths * excess).sum(dim=1, keepdim=True) / lengths.sum(dim=1, keepdim=True).clamp(min=1)
        advantages = (excess - baseline).masked_fill(excluded, 0.0)
        return advantages.reshape(-1, 1).to(rollout.rewards.dtype)


PRESETS = (
    MethodPreset(
        "opo",
        trainer="OPOTrainer",
        title="On-Policy RL with Optimal Reward Baseline",
        summary="Each reward minus the group's mean reward, weighted by length.",
        paper=Paper("On-Policy RL with Optimal Reward Baseline", "Hao et al.", "2505.23585"),
        golden=("opo",),
        inherits="grpo",
        sets={"advantage.kind": ("opo", "OPO paper: the length-weighted mean as the baseline")},
    ),
)
