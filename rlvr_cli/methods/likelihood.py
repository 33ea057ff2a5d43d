"""PL, NL, CL and RAFT++: advantage plus or minus one by correctness, without a baseline.

    A = +1 if correct, -1 if wrong; 0 on the side that is not trained (pl: only correct, nl: only wrong, cl: both)

"Towards Understanding the Optimization Landscape of GRPO and its Variants", equations 8 (PL), 9 (NL) and 12 (CL and
TNCL, with 1/T instead of 1/|a|). RAFT++ (arXiv:2504.11343) is PL with importance sampling and clipping; PL and NL are
also known as PSR and NSR (arXiv:2506.01347). Correctness is the verifier's verdict, not the reward: prompts with only
correct completions train too, unlike in GRPO. PL, NL and CL use ``sequence_mean``; TNPL, TNNL and TNCL
``constant_length`` with T = rollout.max_new_tokens. Both average over the trained completions only.

How we differ from the paper:

- Completions are averaged over the optimizer step. The paper averages per prompt first:
  ``method.aggregation.sequences=trained_per_prompt``.
- T is the longest completion. Equation 13 (|a| + |q| = T) suggests that it includes the prompt, a constant factor.
- A completion without any valid token is not counted.
- The paper has no public code. AR-Lopti's "RAFT" keeps the tokens of wrong completions in the divisor; we don't.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.preset import NO_DUAL_CLIP, ONE_PASS, MethodPreset, Paper, Sets


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

    @property
    def signs(self) -> tuple[int, ...]:
        return {"positive": (1,), "negative": (-1,), "both": (-1, 1)}[self.side]

    def advantages(self, rollout: Rollout) -> Tensor:
        rewards = rollout.rewards
        assert rollout.correct is not None
        positive = rollout.correct.to(rewards.dtype)
        negative = 1 - positive
        signs = {"positive": positive, "negative": -negative, "both": positive - negative}[self.side]
        return torch.where(rewards.isnan(), 0.0, signs).unsqueeze(1)


PAPER_1 = Paper("Towards Understanding the Optimization Landscape of GRPO and its Variants", "Jain et al.", None)
PAPER_2 = Paper(
    "A Minimalist Approach to LLM Reasoning: from Rejection Sampling to Reinforce", "Xiong et al.", "2504.11343"
)


def _sets(side: str, where: str, *, policy_loss: Sets | None = None, constant_length: bool = False) -> Sets:
    """What a likelihood method sets; ``where`` of the paper it stands; ``policy_loss`` has sources of its own."""
    if constant_length:
        aggregation = "constant_length", f"{where}: the longest possible length, rollout.max_new_tokens here"
    else:
        aggregation = "sequence_mean", f"{where}: each completion's length, then their number"
    counted = f"{where}: the trained completions; counted over the whole step"
    if side != "both":
        counted += ", in the paper per prompt (trained_per_prompt)"
    return {
        "advantage.kind": (
            "likelihood",
            f"{where}: plus or minus one by the verdict",
        ),
        "advantage.side": (side, where),
        **({"policy_loss.kind": ("is", where)} if policy_loss is None else policy_loss),
        "aggregation.kind": aggregation,
        "aggregation.sequences": ("trained", counted),
        **ONE_PASS,
        "kl.beta": (0.0, "landscape paper, section 2: no KL term"),
    }


PRESETS = (
    MethodPreset(
        "pl",
        title="Positive Likelihood (PSR)",
        summary="Only correct completions, all with advantage 1.",
        paper=PAPER_1,
        golden=("likelihood_family",),
        aliases=("psr",),
        sets=_sets("positive", "landscape paper, equation 8"),
    ),
    MethodPreset(
        "nl",
        title="Negative Likelihood (NSR)",
        summary="Only wrong completions, all with advantage -1.",
        paper=PAPER_1,
        golden=("likelihood_family",),
        aliases=("nsr",),
        sets=_sets("negative", "landscape paper, equation 9"),
    ),
    MethodPreset(
        "cl",
        title="Combined Likelihood",
        summary="Correct completions with advantage 1, wrong ones with -1.",
        paper=PAPER_1,
        golden=("likelihood_family",),
        sets=_sets(
            "both",
            "landscape paper, section 4.3",
            policy_loss={"policy_loss.kind": ("is", "landscape paper, equations 8 and 9")},
        ),
    ),
    MethodPreset(
        "tnpl",
        title="Token-normalised Positive Likelihood",
        summary="PL divided by a constant instead of each length.",
        paper=PAPER_1,
        golden=("likelihood_family",),
        sets=_sets("positive", "landscape paper, equation 12", constant_length=True),
    ),
    MethodPreset(
        "tnnl",
        title="Token-normalised Negative Likelihood",
        summary="NL divided by a constant instead of each length.",
        paper=PAPER_1,
        golden=("likelihood_family",),
        sets=_sets("negative", "landscape paper, equation 12", constant_length=True),
    ),
    MethodPreset(
        "tncl",
        title="Token-normalised Combined Likelihood",
        summary="CL divided by a constant instead of each length.",
        paper=PAPER_1,
        golden=("likelihood_family",),
        sets=_sets("both", "landscape paper, equation 12", constant_length=True),
    ),
    MethodPreset(
        "raft-pp",
        title="RAFT++",
        summary="PL with importance sampling and GRPO's clip.",
        paper=PAPER_2,
        golden=("likelihood_family",),
        aliases=("raft++",),
        sets=_sets(
            "positive",
            "landscape paper, equation 8",
            policy_loss={
                "policy_loss.kind": (
                    "ppo_clip",
                    "landscape paper, equation 7 and section 4.2: importance sampling and clipping",
                ),
                "policy_loss.eps_low": (0.2, "landscape paper, equation 7 and section 4.2 (verl's 0.2)"),
                "policy_loss.eps_high": (0.2, "landscape paper, equation 7 and section 4.2 (verl's 0.2)"),
                **NO_DUAL_CLIP,
            },
        ),
    ),
)
