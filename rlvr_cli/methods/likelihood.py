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
- The paper has no public code. AR-Lopti's "RAFT" keeps the tokens of wrong completions in the divisor; we don't.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.preset import MethodPreset, Paper, trust_region


class LikelihoodAdvantage(Advantage):
    """Advantage +1 for correct rows, -1 for wrong ones."""

    kind: Literal["likelihood"] = Field(
        "likelihood",
        description="likelihood = +1 on correct rows, -1 on wrong ones, by the verdict of the task's verifier.",
    )
    side: Literal["positive", "negative", "both"] = Field(
        "both", description="Rows to train on; the others get advantage 0."
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


def _preset(
    name: str, trainer: str, title: str, summary: str, side: str, equation: str, aliases: tuple[str, ...] = ()
) -> MethodPreset:
    """Return the preset of a likelihood method from ``equation`` of the landscape paper."""
    source = f"landscape paper, {equation}"
    rows = f"{source}: the trained completions; counted over the whole step"
    divisor = ("sequence_mean", f"{source}: each completion's length, then their number")
    if equation == "equation 12":
        divisor = ("constant_length", f"{source}: the longest possible length, rollout.max_new_tokens here")
    return MethodPreset(
        name,
        trainer=trainer,
        title=title,
        summary=summary,
        paper=PAPER_1,
        golden=("likelihood_family",),
        aliases=aliases,
        inherits="grpo",
        sets={
            "advantage.kind": ("likelihood", f"{source}: plus or minus one by the verdict"),
            "advantage.side": (side, source),
            "policy_loss.kind": ("is", source if equation != "section 4.3" else "landscape paper, equations 8 and 9"),
            "aggregation.kind": divisor,
            "aggregation.sequences": (
                "trained",
                rows if side == "both" else f"{rows}, in the paper per prompt (trained_per_prompt)",
            ),
            "kl.beta": (0.0, "landscape paper, section 2: no KL term"),
        },
    )


CONSTANT = "divided by a constant instead of each length."
EQUATION_7 = "landscape paper, equation 7 and section 4.2"
PRESETS = (
    _preset(
        "pl",
        "PLTrainer",
        "Positive Likelihood (PSR)",
        "Only correct completions, all with advantage 1.",
        "positive",
        "equation 8",
        ("psr",),
    ),
    _preset(
        "nl",
        "NLTrainer",
        "Negative Likelihood (NSR)",
        "Only wrong completions, all with advantage -1.",
        "negative",
        "equation 9",
        ("nsr",),
    ),
    _preset(
        "cl",
        "CLTrainer",
        "Combined Likelihood",
        "Correct completions with advantage 1, wrong ones with -1.",
        "both",
        "section 4.3",
    ),
    _preset("tnpl", "TNPLTrainer", "Token-normalised Positive Likelihood", f"PL {CONSTANT}", "positive", "equation 12"),
    _preset("tnnl", "TNNLTrainer", "Token-normalised Negative Likelihood", f"NL {CONSTANT}", "negative", "equation 12"),
    _preset("tncl", "TNCLTrainer", "Token-normalised Combined Likelihood", f"CL {CONSTANT}", "both", "equation 12"),
    MethodPreset(
        "raft-pp",
        trainer="RAFTPPTrainer",
        title="RAFT++",
        summary="PL with importance sampling and GRPO's clip.",
        paper=PAPER_2,
        golden=("likelihood_family",),
        aliases=("raft++",),
        inherits="pl",
        sets={
            "policy_loss.kind": ("ppo_clip", f"{EQUATION_7}: importance sampling and clipping"),
            **trust_region(0.2, 0.2, f"{EQUATION_7} (verl's 0.2)"),
            "policy_loss.dual_clip": (
                None,
                "off: not in the paper's formula; verl adds it to every run (3; 10 in recipes)",
            ),
        },
    ),
)
