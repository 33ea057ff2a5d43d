"""What a method may look at: the tokens of some completions, as named tensors."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr_cli.core.lazy import Tensor, torch


@dataclass(frozen=True)
class Tokens:
    """The completion tokens of ``B`` rows, right-padded to ``T`` positions.

    Attributes:
        log_probs: (B, T) log pi(token) of the current policy, tempered, natural logarithm; 0 on padding.
        old_log_probs: (B, T) the same under the policy that sampled the rollout.
        advantages: (B, T) or (B, 1) advantage A of each token.
        mask: (B, T) 1 on valid tokens, 0 on padding.
        entropies: (B, T) entropy of the current policy at each position, nats; only where a method needs it.
        ref_log_probs: (B, T) log-probs under the reference policy; only where there is one.
        low_threshold: (B, 1) old probability below which a token belongs to the low pass; only where the
            schedule has one that is not a constant.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    mask: Tensor
    entropies: Tensor | None = None
    ref_log_probs: Tensor | None = None
    low_threshold: Tensor | None = None

    @property
    def ratio(self) -> Tensor:
        """(B, T) importance ratio r = pi / pi_old, with gradient where ``log_probs`` has one."""
        return torch.exp(self.log_probs - self.old_log_probs)

    @property
    def old_probs(self) -> Tensor:
        """(B, T) probability of each token under the policy that sampled it."""
        return torch.exp(self.old_log_probs)


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


def regions(tokens: Tokens, eps_low: float | Tensor, eps_high: float | Tensor, ratio: Tensor | None = None) -> Regions:
    """Sort every valid token into one of the five regions.

    Args:
        eps_low, eps_high: the bounds, one for all tokens or broadcastable to (B, T).
        ratio: the ratio that is compared with the bounds, where it is not that of the token itself.
    """
    ratio = tokens.ratio.detach() if ratio is None else ratio.detach().expand_as(tokens.log_probs)
    advantages = tokens.advantages.expand_as(ratio)
    valid = tokens.mask.bool()
    low, high = (ratio < 1 - eps_low) & valid, (ratio > 1 + eps_high) & valid
    negative, positive = advantages < 0, advantages > 0
    corners = (low & negative, high & positive, low & positive, high & negative)
    return Regions(*corners, M=valid & ~(corners[0] | corners[1] | corners[2] | corners[3]))
