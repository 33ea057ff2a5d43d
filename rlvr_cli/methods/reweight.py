"""Advantage Reweighting: tokens of low probability weigh less.

    A' = (alpha p + 1 - alpha) A        p = old probability of the token

Yang et al., arXiv:2505.12929, equation 4. The factor is between 1 - alpha and 1; nothing is renormalised. alpha is 0.3
on Knights & Knaves, 0.1 on math and with REINFORCE++; 0 switches it off.

How we differ from the paper: it prints the current probability. Its released code and ours take the old one, once per
rollout and without gradient. We leave out the code's separate factor on negative advantages (neg_adv_weight, 1 in its
scripts).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rlvr_cli.core.lazy import Tensor
from rlvr_cli.core.section import Probability
from rlvr_cli.methods.base import Tokens, TokenShaping
from rlvr_cli.methods.preset import MethodPreset, Modifier, Paper, Sets, trust_region


class Reweight(TokenShaping):
    """The factor alpha p + 1 - alpha."""

    key: ClassVar[str] = "reweight"
    main_key: ClassVar[str] = "alpha"
    order: ClassVar[int] = 1

    alpha: Probability = Field(
        0.0,
        description="Advantage Reweighting's alpha: the factor is alpha p + 1 - alpha with the old probability p; 0 "
        "= off.",
    )

    def factor(self, tokens: Tokens) -> Tensor:
        return self.alpha * tokens.old_probs.detach() + (1 - self.alpha)


PAPER = Paper("Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs", "Yang et al.", "2505.12929")
AR_LOPTI: Sets = {
    "advantage.kind": ("group", "AR-Lopti paper, algorithm 1, line 7"),
    "policy_loss.kind": ("ppo_clip", "AR-Lopti paper, equation 1"),
    **trust_region(0.2, 0.24, "AR-Lopti paper, table 2"),
    "policy_loss.dual_clip": (None, "off: no term of the AR-Lopti paper's equation 1; 10 in the released scripts"),
    "aggregation.kind": ("token_mean", "AR-Lopti paper, equation 1"),
    "kl.beta": (0.001, "AR-Lopti paper, table 2"),
}
TABLE_3 = "AR-Lopti paper, table 3: 0.3 for K&K, 0.1 for math (tasks math and gsm8k)"
FOR_TASK = {"math": {"shaping.reweight.alpha": 0.1}, "gsm8k": {"shaping.reweight.alpha": 0.1}}
PRESETS = (
    MethodPreset(
        "reweight",
        trainer="ReweightTrainer",
        title="Advantage Reweighting",
        summary="Scales each token's advantage by its probability, so unlikely tokens dominate less.",
        paper=PAPER,
        golden=("ar",),
        extra_cost="one reference-model forward per rollout (KL penalty)",
        aliases=("advantage-reweighting", "ar"),
        inherits="grpo",
        sets={**AR_LOPTI, "shaping.reweight.alpha": (0.3, f"{TABLE_3}; section 5.3: task-sensitive")},
        for_task=FOR_TASK,
    ),
    Modifier(
        "reweight",
        title="Advantage Reweighting",
        summary="Scales each token's advantage by its probability.",
        paper=PAPER,
        golden=("ar", "ar_lopti"),
        sets={"shaping.reweight.alpha": (0.3, f"{TABLE_3}; with reinforce-pp 0.1, appendix D.2")},
        for_base={"reinforce-pp": {"shaping.reweight.alpha": 0.1}},
        for_task=FOR_TASK,
    ),
)
