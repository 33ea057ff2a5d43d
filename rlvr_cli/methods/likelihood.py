"""PL, NL, CL: plus or minus one by correctness, without any baseline.

    A = +1 where the verifier says correct, else -1; 0 on the side that is not trained on

"Towards Understanding the Optimization Landscape of GRPO and its Variants", equations 8 (PL: correct rows), 9 (NL:
wrong rows) and 12 (both; TNCL, with 1/T for 1/|a|). PL with importance sampling and clipping is RAFT++
(arXiv:2504.11343), PL and NL are PSR and NSR of arXiv:2506.01347. Prompts whose rows are all correct train too, unlike
in GRPO: the sign is that of correctness, not of an advantage or a graded reward. The normalisers are aggregations with
rows ``trained``: ``sequence_mean`` for PL, NL and CL, ``constant_length`` with T = the longest completion for TNPL,
TNNL and TNCL.

How we differ from the paper: |A+| and |A-| are counted over the optimizer step; prompt by prompt, so that prompts weigh
alike however many of their rows are correct, is ``method.aggregation.rows=trained_per_prompt``. T is the longest
completion; equation 13 (|a| + |q| = T) suggests that it counts the prompt too, a constant factor. A row without any
valid token is not counted. There is no public code; AR-Lopti's "RAFT" keeps the tokens of wrong rows in the divisor, we
do not.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.advantage import Advantage
from rlvr_cli.methods.rollout import Rollout


class LikelihoodAdvantage(Advantage):
    """Plus one on correct rows, minus one on wrong ones."""

    kind: Literal["likelihood"] = Field(
        "likelihood",
        description="likelihood = +1 on correct rows, -1 on wrong ones, by the verdict of the task's verifier.",
    )
    side: Literal["positive", "negative", "both"] = Field(
        "both", description="Which rows are trained on; the others get 0."
    )

    needs_correct: ClassVar[bool] = True

    def advantages(self, rollout: Rollout) -> Tensor:
        rewards = rollout.rewards
        assert rollout.correct is not None
        positive = rollout.correct.to(rewards.dtype)
        negative = 1 - positive
        signs = {"positive": positive, "negative": -negative, "both": positive - negative}[self.side]
        return torch.where(rewards.isnan(), 0.0, signs).unsqueeze(1)
