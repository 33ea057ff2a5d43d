"""What a method may look at: the tokens of some completions, as named tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """The completion tokens of ``B`` rows, right-padded to ``T`` positions.

    Attributes:
        log_probs: (B, T) log pi(token) of the current policy, tempered, natural logarithm; 0 on padding.
        old_log_probs: (B, T) the same under the policy that sampled the rollout.
        advantages: (B, T) or (B, 1) advantage A of each token.
        mask: (B, T) 1 on valid tokens, 0 on padding.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    mask: Tensor

    @property
    def ratio(self) -> Tensor:
        """(B, T) importance ratio r = pi / pi_old, with gradient where ``log_probs`` has one."""
        return torch.exp(self.log_probs - self.old_log_probs)


@dataclass(frozen=True)
class Regions:
    """(B, T) boolean masks by ratio r and sign of the advantage A; strict inequalities, valid tokens only.

    ``LN``: r < 1 - eps_low, A < 0.  ``HP``: r > 1 + eps_high, A > 0.  ``LP``, ``HN``: the two other corners.
    ``M``: every other valid token. The names are those of the DGPO paper's table of regions.
    """

    LN: Tensor
    HP: Tensor
    LP: Tensor
    HN: Tensor
    M: Tensor


def regions(tokens: Tokens, eps_low: float, eps_high: float) -> Regions:
    """Sort every valid token into one of the five regions."""
    ratio = tokens.ratio.detach()
    advantages = tokens.advantages.expand_as(ratio)
    valid = tokens.mask.bool()
    low, high = (ratio < 1 - eps_low) & valid, (ratio > 1 + eps_high) & valid
    negative, positive = advantages < 0, advantages > 0
    corners = (low & negative, high & positive, low & positive, high & negative)
    return Regions(*corners, M=valid & ~(corners[0] | corners[1] | corners[2] | corners[3]))
