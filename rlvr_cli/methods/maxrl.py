"""MaxRL: the verdict relative to the group's pass rate, divided by that pass rate.

    p = share of the prompt's completions that are correct
    A = (c - p) / p, 0 where p = 0        c = 1 if correct, 0 if wrong

Tajwar, Zeng et al., "Maximum Likelihood Reinforcement Learning", arXiv:2602.02710, algorithm 1. grad log P(correct) is
the sum over k of grad pass@k / k, of which expected reward has only the first term; over n completions A estimates the
first n - 1 without bias. (c / p alone would estimate n; the subtracted mean, absent where p = 0, costs one.)

How we differ from the paper: algorithm 1 sums over the group and divides by its size; here ``aggregation`` divides.

How we differ from the released code (tajwarfahim/maxrl, prime-rl's max_rl):

- They read the reward, and the formula holds for 0 and 1 alone: with other rewards the mean may be near 0 or negative,
  and turns or inflates every advantage. Here c is the verifier's verdict, whatever the reward.
- The authors divide by p + 1e-6.
- A group of one is refused: its A is always 0.
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
    rewarded = ~rollout.rewards.isnan()
    correct = (rollout.correct.bool() & rewarded).double()

    def total(values: Tensor) -> Tensor:
        grouped = values.double().view(-1, rollout.group_size)
        return grouped.sum(dim=1, keepdim=True).expand_as(grouped).reshape(-1)

    return correct, total(correct), total(rewarded)


class MaxRLAdvantage(Advantage):
    """The verdict minus the group's pass rate, divided by it; rows without a reward get 0 and count nowhere."""

    kind: Literal["maxrl"] = Field(
        "maxrl", description="maxrl = the verdict (1 or 0) minus the group's pass rate, divided by it."
    )

    needs_correct: ClassVar[bool] = True

    @property
    def needs_group(self) -> tuple[str, str] | None:
        return "method.advantage.kind", "method.advantage.kind=maxrl compares the completions of a prompt"

    def advantages(self, rollout: Rollout) -> Tensor:
        correct, right, count = count_verdicts(rollout)
        # (c - p) / p = c / p - 1, which is exactly 0 if all are correct.
        values = correct * count / right.clamp(min=1) - 1
        trained = (right > 0) & ~rollout.rewards.isnan()
        return torch.where(trained, values, 0.0).to(rollout.rewards.dtype).unsqueeze(1)


PAPER = Paper("Maximum Likelihood Reinforcement Learning", "Tajwar, Zeng et al.", "2602.02710")
PRESETS = (
    MethodPreset(
        "maxrl",
        trainer="MaxRLTrainer",
        title="Maximum Likelihood Reinforcement Learning",
        summary="The verdict minus the group's pass rate, divided by it: hard prompts weigh more.",
        paper=PAPER,
        golden=("maxrl",),
        inherits="grpo",
        sets={"advantage.kind": ("maxrl", "MaxRL paper, algorithm 1")},
    ),
)
