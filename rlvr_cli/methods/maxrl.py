"""MaxRL: the verdict relative to the group's pass rate, divided by that pass rate.

    p = share of the prompt's completions that are correct
    A = (c - p) / p, 0 where p = 0        c = 1 if correct, 0 if wrong

Tajwar, Zeng et al., arXiv:2602.02710, algorithm 1. grad log P(correct) is the sum over k of grad pass@k / k, of which
expected reward has only the first term; over n completions A estimates the first n - 1 without bias.

How we differ from the paper: algorithm 1 sums over the group and divides by its size; here ``aggregation`` divides.

How we differ from the released code (tajwarfahim/maxrl, prime-rl's max_rl): it reads the reward, where the formula
holds for 0 and 1 alone, and divides by p + 1e-6. Here c is the verifier's verdict, whatever the reward.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.preset import MethodPreset, Paper


def count_verdicts(rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
    """Return (N,) float64: 1 on correct rows, and the correct and all rows with a reward of each row's group."""
    assert rollout.correct is not None
    rewarded = (~rollout.rewards.isnan()).double()
    correct = rollout.correct.bool() * rewarded
    totals = (rows.view(-1, rollout.group_size).sum(dim=1) for rows in (correct, rewarded))
    right, count = (total.repeat_interleave(rollout.group_size) for total in totals)
    return correct, right, count


class MaxRLAdvantage(Advantage):
    """The verdict minus the group's pass rate, divided by it; rows without a reward get 0 and count nowhere."""

    kind: Literal["maxrl"] = Field("maxrl", description="maxrl = (verdict - the group's pass rate) / that pass rate.")

    needs_correct: ClassVar[bool] = True
    compares_group: ClassVar[bool] = True

    def advantages(self, rollout: Rollout) -> Tensor:
        correct, right, count = count_verdicts(rollout)
        # (c - p) / p = c / p - 1, which is exactly 0 if all are correct.
        advantages = correct * count / right - 1
        trained = (right > 0) & ~rollout.rewards.isnan()
        return torch.where(trained, advantages, 0.0).to(rollout.rewards.dtype).unsqueeze(1)


PRESETS = (
    MethodPreset(
        "maxrl",
        trainer="MaxRLTrainer",
        title="Maximum Likelihood Reinforcement Learning",
        summary="The verdict minus the group's pass rate, divided by it: hard prompts weigh more.",
        paper=Paper("Maximum Likelihood Reinforcement Learning", "Tajwar, Zeng et al.", "2602.02710"),
        golden=("maxrl",),
        inherits="grpo",
        sets={"advantage.kind": ("maxrl", "MaxRL paper, algorithm 1")},
    ),
)
