"""Advantage Reweighting: tokens of low probability weigh less.

    A' = (alpha p + 1 - alpha) A        p = old probability of the token

Yang et al., "Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs", arXiv:2505.12929, equation 4. The factor
lies in [1 - alpha, 1]; nothing is renormalised. alpha: 0.3 on Knights & Knaves, 0.1 on math and with REINFORCE++; 0 is
the identity.

How we differ from the paper: it prints the current probability; its released code takes the old one, once a rollout and
without gradient, and so do we. The code's separate factor on negative advantages (neg_adv_weight, 1 in its scripts) is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlvr_cli.core.lazy import Tensor
from rlvr_cli.methods.shaping import TokenShaping
from rlvr_cli.methods.tokens import Tokens


@dataclass(frozen=True)
class Reweight(TokenShaping):
    """The factor alpha p + 1 - alpha.

    Attributes:
        alpha: 0 = off, 1 = the factor is the probability itself.
    """

    alpha: float

    def factor(self, tokens: Tokens) -> Tensor:
        return self.alpha * tokens.old_probs.detach() + (1 - self.alpha)
