"""Group-relative advantages: GRPO's z-score and Dr. GRPO's difference to the mean.

    A = (R - mean) / (std + 1e-6)        GRPO: DeepSeekMath, arXiv:2402.03300, section 4.1.2
    A = R - mean                         Dr. GRPO: arXiv:2503.20783, section 3.2

within the completions of one prompt, the same for all tokens of a completion. The epsilon and the sample standard
deviation (ddof 1) are verl's; no paper prints either.

How we differ from the released code: from verl, in float64 inside, and in that a group of equal rewards gives exactly
0, also where rounding would leave a remainder of the mean that the epsilon then magnifies. TRL's epsilon is 1e-4.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.advantage import Advantage
from rlvr_cli.methods.preset import MethodPreset, Paper
from rlvr_cli.methods.rollout import Rollout

STD_EPSILON = 1e-6


def group_advantage(rewards: Tensor, group_size: int, *, divide_by_std: bool) -> Tensor:
    """A of every completion.

    Args:
        rewards: (N,) one reward a completion, groups contiguous. NaN marks a completion that must not be learned
            from: it gets A = 0 and takes no part in its group's statistics.
        group_size: completions per prompt; N is a multiple of it.

    Returns:
        (N,) advantages in the dtype of ``rewards``. A group of one keeps its reward, divided by 1 + 1e-6 when
        ``divide_by_std`` (mean 0 and std 1, as verl has it).

    Raises:
        ValueError: N is not a multiple of ``group_size``.
    """
    if rewards.numel() % group_size:
        raise ValueError(f"{rewards.numel()} rewards do not form groups of {group_size}")
    grouped = rewards.double().view(-1, group_size)
    known = ~grouped.isnan()
    count = known.sum(dim=1, keepdim=True)
    filled = grouped.nan_to_num(nan=0.0)
    mean = filled.sum(dim=1, keepdim=True) / count.clamp(min=1)
    deviation = torch.where(known, grouped - mean, 0.0)
    std = (deviation.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    lowest = grouped.nan_to_num(nan=float("inf")).amin(dim=1, keepdim=True)
    highest = grouped.nan_to_num(nan=float("-inf")).amax(dim=1, keepdim=True)
    deviation = torch.where(lowest == highest, 0.0, deviation)
    if group_size == 1:
        deviation, std = filled, torch.ones_like(std)
    advantages = deviation / (std + STD_EPSILON) if divide_by_std else deviation
    return advantages.reshape(-1).to(rewards.dtype)


def known_of_group(rewards: Tensor, group_size: int) -> Tensor:
    """(N,) how many completions of each completion's group have a reward, itself included."""
    known = ~rewards.isnan().view(-1, group_size)
    return known.sum(dim=1, keepdim=True).expand_as(known).reshape(-1)


class GroupAdvantage(Advantage):
    """The reward against those of the same prompt."""

    kind: Literal["group"] = Field("group", description="group = reward minus the group's mean.")
    scale: Literal["std", "none"] = Field(
        "std", description="Divide by the group's standard deviation (GRPO), or not (Dr. GRPO)."
    )

    def advantages(self, rollout: Rollout) -> Tensor:
        return group_advantage(rollout.rewards, rollout.group_size, divide_by_std=self.scale == "std").unsqueeze(1)


PAPER = Paper("Understanding R1-Zero-Like Training: A Critical Perspective", "Liu et al.", "2503.20783")
PRESETS = (
    MethodPreset(
        "dr-grpo",
        title="Group Relative Policy Optimization Done Right",
        summary="GRPO without the two divisions that favour short wrong answers and easy prompts: by length and by "
        "spread.",
        paper=PAPER,
        golden=("dr_grpo", "advantages"),
        sets={
            "advantage.kind": ("group", "Dr. GRPO paper, section 3.2: the reward minus the group's mean"),
            "advantage.scale": ("none", "Dr. GRPO paper: the standard deviation is left out"),
            "weight.kind": ("clip", "Dr. GRPO paper: GRPO's clip is kept"),
            "weight.eps_low": (0.2, "verl's default; the paper keeps GRPO's clip"),
            "weight.eps_high": (0.2, "verl's default; the paper keeps GRPO's clip"),
            "weight.dual_clip": (
                None,
                "off: no term of the paper's formula; verl adds it to every run (3; 10 in recipes), with no gradient "
                "where the advantage is negative and the ratio above it",
            ),
            "aggregation.kind": (
                "constant_length",
                "Dr. GRPO paper: a constant in place of each row's length, rollout.max_new_tokens here",
            ),
            "aggregation.rows": ("all", "the mean over all G rows of a group in the paper's formula"),
            "schedule.kind": ("one_pass", "every token in each update, as in the paper's objective"),
            "kl.beta": (0.0, "Dr. GRPO paper: no KL penalty"),
        },
    ),
)
