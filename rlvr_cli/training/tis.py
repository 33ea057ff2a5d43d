"""Truncated importance sampling for a sampler that is not exactly the policy that is trained.

    w = min(pi_old / pi_sampler, cap)        each token, without gradient; multiplies F A

pi_old is the trainer's own probability of the token before the first update on the rollout, pi_sampler the sampler's,
both at the sampling temperature. As TRL's ``vllm_importance_sampling_mode="token_truncate"`` (GRPOTrainer, 1.16), after
Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025).

How we differ from TRL: pi_old is what the update itself divides by, so that no forward pass is spent on it; there is no
lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def importance_ratios(old_log_probs: Tensor, sampler_log_probs: Tensor) -> Tensor:
    """(B, T) pi_old / pi_sampler; 1 where the sampler could not say (NaN)."""
    difference = old_log_probs.detach() - sampler_log_probs
    return torch.where(difference.isnan(), 0.0, difference).exp()


def in_rows(told: Sequence[Sequence[float]], mask: Tensor) -> Tensor:
    """(n, T) float32: what the sampler ``told`` of each row's tokens at their places, 0 where ``mask`` has none.

    Raises ValueError where a row has not one value for each of its tokens.
    """
    values = torch.zeros(mask.shape, dtype=torch.float32)
    lengths = mask.sum(dim=1).tolist()
    for row, (of_row, length) in enumerate(zip(told, lengths, strict=True)):
        # A row that is dropped from training has no tokens left.
        if length and len(of_row) != length:
            raise ValueError(f"row {row}: {len(of_row)} values from the sampler for {int(length)} tokens")
        values[row, : int(length)] = torch.tensor(of_row[: int(length)], dtype=torch.float32)
    return values.to(mask.device)
