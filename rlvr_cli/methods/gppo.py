"""GPPO and CE-GPPO: beyond the trust region the gradient keeps the weight of the boundary, or a share of it.

    l = -A sg(F) pi / sg(pi)
    F = beta1 (1 - eps_low) in LN, beta2 (1 + eps_high) in HP, r elsewhere

GPPO (beta1 = beta2 = 1): Klear-Reasoner, arXiv:2508.07629; CE-GPPO: arXiv:2509.20712; both in the form of F: DGPO,
arXiv:2603.14389, equations 4 and 5. CE-GPPO's beta1 is 0.75 in its 7B recipe and for every size in the DGPO paper, 0.5
in its 1.5B recipe, 0.25 by default in its code; beta2 = 1.

How we differ from the released code: its GPPO function reads a name that is never defined and cannot run; we take its
general form with both betas 1, which equals that function with the name repaired. Its dual clip (no gradient where A <
0 and r > c, c = 10 in the recipes) is off unless ``dual_clip`` is set. Every CE-GPPO recipe adds 0.1 times the negative
log-likelihood of correct rows, which is not part of the published objective: we leave it out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_cli.methods.clip import dual_clipped
from rlvr_cli.methods.tokens import Tokens
from rlvr_cli.methods.weight import TokenWeight, with_unit_slope


@dataclass(frozen=True)
class GPPO(TokenWeight):
    """The ratio; beyond the bounds a share of the bound.

    Attributes:
        eps_low, eps_high: the trust region is 1 - eps_low <= r <= 1 + eps_high.
        beta1, beta2: shares of the bound below and above it; both 1 in GPPO.
        dual_clip: c > 1, or None: no gradient where A < 0 and r > c.
    """

    eps_low: float
    eps_high: float
    beta1: float
    beta2: float
    dual_clip: float | None

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return self.eps_low, self.eps_high

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        where = self.regions(tokens)
        weight = torch.where(where.LN, self.beta1 * (1 - self.eps_low), tokens.ratio.detach())
        weight = torch.where(where.HP, self.beta2 * (1 + self.eps_high), weight)
        return weight if self.dual_clip is None else torch.where(dual_clipped(tokens, self.dual_clip), 0.0, weight)

    def surrogate(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        loss = with_unit_slope(-self.weight(tokens) * tokens.advantages, tokens.log_probs)
        if self.dual_clip is None:
            return loss
        return torch.where(dual_clipped(tokens, self.dual_clip), -tokens.advantages * self.dual_clip, loss)
