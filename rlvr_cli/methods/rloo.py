"""RLOO: the reward minus the mean reward of the prompt's other completions.

    A_i = R_i - mean of R_j over the other completions j of the prompt

The leave-one-out estimator of Ahmadian et al., "Back to Basics", arXiv:2402.14740. It does not divide by a standard
deviation.

How we differ from the paper: it treats a completion as one action, makes one update per rollout, and adds a KL penalty
to the reward of its preference task. Here the loss is a token mean with clip 0.2 for further updates, without KL.

How we differ from the released code (verl): equal rewards give exactly 0, and a group of one is refused because it has
no baseline.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.grpo import count_rewarded, group_advantage
from rlvr_cli.methods.preset import MethodPreset, Paper, trust_region


class RLOOAdvantage(Advantage):
    """The reward minus the mean of the group's others; rows without a reward get 0 and count in no baseline."""

    kind: Literal["rloo"] = Field("rloo", description="rloo = reward minus the mean of the group's others.")

    compares_group: ClassVar[bool] = True

    def advantages(self, rollout: Rollout) -> Tensor:
        centred = group_advantage(rollout.rewards, rollout.group_size, divide_by_std=False)
        # R - mean of the others = n / (n - 1) (R - mean of all); in a group of one there are no others.
        rewarded = count_rewarded(rollout.rewards, rollout.group_size)
        factor = rewarded.double() / (rewarded - 1).clamp(min=1)
        return (centred * factor.to(centred.dtype)).unsqueeze(1)


PAPER = Paper(
    "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
    "Ahmadian et al.",
    "2402.14740",
)
PRESETS = (
    MethodPreset(
        "rloo",
        trainer="RLOOTrainer",
        title="REINFORCE Leave-One-Out",
        summary="Each reward minus the mean reward of the prompt's other completions.",
        paper=PAPER,
        golden=("advantages",),
        inherits="grpo",
        sets={
            "advantage.kind": ("rloo", "RLOO paper: the mean of the other completions as the baseline"),
            "policy_loss.kind": (
                "ppo_clip",
                "verl's default; the paper has no ratio, and at one update per rollout it is 1",
            ),
            **trust_region(
                0.2,
                0.2,
                "verl's default; at one update per rollout, as in the paper, the ratio is 1 and nothing is clipped",
            ),
            "aggregation.kind": ("token_mean", "verl's default; the paper sums over the completion as one action"),
            "kl.beta": (0.0, "the paper puts a KL penalty into the reward of its preference task"),
        },
    ),
)
