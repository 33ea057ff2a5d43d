"""The clipped importance ratio of PPO, GRPO, DAPO and Dr. GRPO.

    l = max(-A r, -A clip(r, 1 - eps_low, 1 + eps_high))        r = pi / pi_old

The gradient is -F A grad log pi with

    F = r,  but 0 in LN (r < 1 - eps_low, A < 0) and in HP (r > 1 + eps_high, A > 0).

Schulman et al., arXiv:1707.06347, equation 7; DeepSeekMath (GRPO), arXiv:2402.03300, equation 3; eps_high above eps_low
is DAPO's clip-higher, arXiv:2503.14476, equation 10. GRPO: 0.2 on both sides; DAPO: 0.2 and 0.28.

How we differ from the released code: verl adds a dual clip (F = 0 where r > c and A < 0; c = 3 by default, 10 in the
recipes of DAPO and AR-Lopti) to every run; here it is off unless ``dual_clip`` is set, as in the formula above. verl
clamps the log ratio to +-20; we do not.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.tokens import Tokens
from rlvr_cli.methods.weight import AboveOne, EpsHigh, EpsLow, TokenWeight


class ClippedRatio(TokenWeight):
    """The importance ratio, cut off outside the trust region."""

    kind: Literal["clip"] = Field("clip", description="clip = the ratio, no gradient where it left the trust region.")
    eps_low: EpsLow = Field(0.2, description="The trust region begins at 1 - eps_low.")
    eps_high: EpsHigh = Field(0.2, description="The trust region ends at 1 + eps_high.")
    dual_clip: AboveOne | None = Field(
        None, description="No gradient where the advantage is negative and the ratio above this; null = off."
    )

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return self.eps_low, self.eps_high

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        where = self.regions(tokens)
        ratio = tokens.ratio.detach()
        cut = where.LN | where.HP
        if self.dual_clip is not None:
            cut = cut | dual_clipped(tokens, self.dual_clip)
        return torch.where(cut, 0.0, ratio)

    def surrogate(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        loss = clipped_surrogate(tokens, tokens.ratio, self.eps_low, self.eps_high)
        if self.dual_clip is None:
            return loss
        bounded = torch.minimum(loss, -tokens.advantages * self.dual_clip)
        return torch.where(tokens.advantages < 0, bounded, loss)


def clipped_surrogate(tokens: Tokens, ratio: Tensor, eps_low: float | Tensor, eps_high: float | Tensor) -> Tensor:
    """(B, T) max(-A r, -A clip(r)), differentiable in ``ratio``."""
    lowest, highest = (torch.as_tensor(bound, dtype=ratio.dtype) for bound in (1 - eps_low, 1 + eps_high))
    clipped = torch.minimum(torch.maximum(ratio, lowest), highest)
    return torch.maximum(-tokens.advantages * ratio, -tokens.advantages * clipped)


def dual_clipped(tokens: Tokens, limit: float) -> Tensor:
    """(B, T) where the advantage is negative and the ratio above ``limit``."""
    return (tokens.ratio.detach() > limit) & (tokens.advantages < 0)
