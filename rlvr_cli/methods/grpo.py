"""GRPO: group-relative advantages under PPO's clipped importance ratio.

    l = max(-A r, -A clip(r, 1 - eps_low, 1 + eps_high))        r = pi / pi_old

DeepSeekMath, arXiv:2402.03300, equation 3. Its gradient is -F A grad log pi with

    F = r,  but 0 in LN (r < 1 - eps_low, A < 0) and in HP (r > 1 + eps_high, A > 0).

How we differ from released code: verl adds a dual clip (F = 0 where r > c and A < 0, c = 3) to every run; here it is
off unless ``dual_clip`` is set. verl clamps the log ratio to +-20; we do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_cli.methods.tokens import Regions, Tokens, regions


@dataclass(frozen=True)
class ClippedRatio:
    """The token weight F of PPO, GRPO and DAPO: the importance ratio, cut off outside the trust region.

    Attributes:
        eps_low, eps_high: the trust region is 1 - eps_low <= r <= 1 + eps_high (0.2 each in GRPO).
        dual_clip: c > 1, or None: no gradient where A < 0 and r > c (arXiv:1912.09729).
    """

    eps_low: float
    eps_high: float
    dual_clip: float | None

    def regions(self, tokens: Tokens) -> Regions:
        """Where each token lies."""
        return regions(tokens, self.eps_low, self.eps_high)

    def weight(self, tokens: Tokens) -> Tensor:
        """(B, T) F, without gradient: d(loss of a token) / d(log pi) is -F A."""
        where = self.regions(tokens)
        ratio = tokens.ratio.detach()
        cut = where.LN | where.HP
        if self.dual_clip is not None:
            cut = cut | ((ratio > self.dual_clip) & (tokens.advantages < 0))
        return torch.where(cut, 0.0, ratio)

    def surrogate(self, tokens: Tokens) -> Tensor:
        """(B, T) the familiar loss value whose gradient :meth:`weight` writes out."""
        ratio = tokens.ratio
        clipped = ratio.clamp(1 - self.eps_low, 1 + self.eps_high)
        loss = torch.maximum(-tokens.advantages * ratio, -tokens.advantages * clipped)
        if self.dual_clip is None:
            return loss
        bounded = torch.minimum(loss, -tokens.advantages * self.dual_clip)
        return torch.where(tokens.advantages < 0, bounded, loss)
