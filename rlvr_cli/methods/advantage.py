"""Advantages from rewards."""

from __future__ import annotations

import torch
from torch import Tensor

STD_EPSILON = 1e-6


def group_advantage(rewards: Tensor, group_size: int, *, divide_by_std: bool) -> Tensor:
    """A = (R - mean) / (std + 1e-6) within each group of completions of one prompt.

    DeepSeekMath, arXiv:2402.03300, equation 3 ff. (no epsilon in print); the epsilon and the sample standard
    deviation (ddof 1) are verl's. ``divide_by_std=False`` is Dr. GRPO's A = R - mean (arXiv:2503.20783).

    How we differ from TRL 1.16: epsilon 1e-6, not 1e-4; float64 inside; a group of equal rewards gives exactly 0,
    also where rounding would leave a remainder of the mean that the epsilon then magnifies.

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
