"""ReMax: the reward minus that of the prompt's greedy completion.

    A = R - R(greedy completion of the prompt)

Li et al., arXiv:2310.10505, algorithm 1. The baseline does not depend on the completions that are trained on, so the
gradient is unbiased without other completions of the prompt: ``rollout.group_size=1`` is the paper's setting. The
greedy completion is judged and never trained on; its tokens and seconds count in the run's (``extra_tokens``).

If the verifier cannot judge it, the prompt's completions are left out, like completions without a reward: a baseline of
0 would be unbiased too, but of a far larger variance.

How we differ from the paper: it puts a KL penalty into the reward, and makes one update per rollout. Here the loss is a
token mean with clip 0.2 for further updates, without KL.

How we differ from the released code (verl): it samples a greedy completion for every row, here one per prompt.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.preset import MethodPreset, Paper


class ReMaxAdvantage(Advantage):
    """The reward minus the greedy completion's; 0 where either is NaN."""

    kind: Literal["remax"] = Field("remax", description="remax = reward minus that of the prompt's greedy completion.")

    needs_greedy: ClassVar[bool] = True

    def advantages(self, rollout: Rollout) -> Tensor:
        assert rollout.greedy_rewards is not None
        difference = rollout.rewards.double() - rollout.greedy_rewards.double()
        return difference.nan_to_num(nan=0.0).to(rollout.rewards.dtype).unsqueeze(1)


PAPER = Paper(
    "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language Models",
    "Li et al.",
    "2310.10505",
)
PRESETS = (
    MethodPreset(
        "remax",
        title="ReMax",
        summary="Each reward minus the reward of the prompt's greedy completion.",
        paper=PAPER,
        golden=("remax",),
        extra_cost="a greedy completion per prompt: 1 / rollout.group_size more sampling",
        inherits="grpo",
        sets={"advantage.kind": ("remax", "ReMax paper, algorithm 1: the greedy completion's reward as the baseline")},
    ),
)
