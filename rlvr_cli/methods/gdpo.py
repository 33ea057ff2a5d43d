"""GDPO: each part of the reward normalised within its group, their weighted sum over the rollout's deviation.

    z_k = (r_k - mean_k) / (std_k + 1e-6)        mean and std over the prompt's completions
    s   = sum of w_k z_k over the parts
    A   = s / (std of s over the rollout + 1e-6)

Liu et al., arXiv:2601.05242. Standard deviations are of the sample (ddof 1), as in TRL's
``multi_objective_aggregation="normalize_then_sum"``. The paper also subtracts the mean of s, which is 0 by
construction; leaving that out keeps a group without a signal at exactly 0.

The parts are those of the verdict (`parts` in ``rollouts/``: format and answer, or each function of ``--reward``) with
the weights of ``task.reward_weights``; in ``PolicyTrainer`` the reward functions with ``reward_weights``. A part that
does not apply to a completion (None) counts in no mean and adds 0.

How we differ from the released code: TRL's epsilons are 1e-4. verl whitens over tokens, so that long completions weigh
more in the deviation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.grpo import STD_EPSILON, group_advantage, sample_std
from rlvr_cli.methods.preset import MethodPreset, Paper


def part_columns(
    rows: Sequence[Mapping[str, float]], names: Sequence[str], weights: Mapping[str, float]
) -> tuple[list[list[float]], list[float]]:
    """Return the unweighted parts of each row in the order of ``names``, NaN for a missing one, and the weights.

    ``rows``: weighted parts, whose sum is the reward. ``weights``: those other than 1.
    """
    columns = [[row.get(name, math.nan) / (weights.get(name) or 1.0) for name in names] for row in rows]
    return columns, [weights.get(name, 1.0) for name in names]


class GDPOAdvantage(Advantage):
    """The sum of the parts' group z-scores over its standard deviation; rows without a reward get 0."""

    kind: Literal["gdpo"] = Field("gdpo", description="gdpo = the sum of the parts of the reward, each normalised.")

    needs_parts: ClassVar[bool] = True
    compares_group: ClassVar[bool] = True

    def advantages(self, rollout: Rollout) -> Tensor:
        assert rollout.parts is not None
        excluded = rollout.rewards.isnan()
        parts = rollout.parts.double().masked_fill(excluded.unsqueeze(1), torch.nan)
        weights = parts.new_ones(parts.shape[1]) if rollout.part_weights is None else rollout.part_weights.to(parts)
        scores = group_advantage(parts.T.reshape(-1), rollout.group_size, divide_by_std=True).view_as(parts.T)
        total = weights @ scores
        deviation = sample_std(total.masked_fill(excluded, torch.nan))
        return (total / (deviation + STD_EPSILON)).to(rollout.rewards.dtype).unsqueeze(1)


PAPER = Paper(
    "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization",
    "Liu et al.",
    "2601.05242",
)
PRESETS = (
    MethodPreset(
        "gdpo",
        trainer="GDPOTrainer",
        title="Group reward-Decoupled Normalization Policy Optimization",
        summary="Each part of the reward normalised within its group, then added up and scaled.",
        paper=PAPER,
        golden=("gdpo",),
        inherits="grpo",
        sets={"advantage.kind": ("gdpo", "GDPO paper: each reward normalised in its group, then the sum")},
    ),
)
