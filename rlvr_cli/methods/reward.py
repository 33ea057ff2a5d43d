"""Replacements of the verifier's reward: noise on a share of the completions, and minus the entropy.

    noise:        R' = lowest + highest - R on flipped completions        (1 - R for rewards 0 and 1)
    entropy_min:  R' = -(mean token entropy of the completion, nats)

Noise: "Towards Understanding the Optimization Landscape of GRPO and its Variants" (a quarter of the rollouts). Entropy:
Prabhudesai et al., "Maximizing Confidence Alone Improves Reasoning", arXiv:2505.22660 (RENT). Both act before the
advantage, so group normalisation sees them.

How we differ from the papers:

- The landscape paper doesn't say whether exactly a quarter is flipped. Here each completion is flipped independently
  with probability 1/4.
- It doesn't cover graded rewards. They are mirrored in the task's range, which is not the reward of the opposite
  verdict: with Knights & Knaves' 3, -0.5, -1 and -3, a flipped malformed answer gets 3, a readable wrong one 0.5.
- The entropy is that of the sampling policy over the whole vocabulary, without gradient; a completion without any valid
  token has no reward (NaN) and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Contradiction, Probability
from rlvr_cli.methods.base import Advantage, Part, Rollout
from rlvr_cli.methods.preset import Modifier, Paper


def flip(rewards: Tensor, flips: Tensor, lowest: float | Tensor, highest: float | Tensor) -> Tensor:
    """Mirror (N,) ``rewards`` in [``lowest``, ``highest``] where ``flips`` (N,) is true; NaN stays NaN.

    lowest, highest: numbers, or (N,).
    """
    return torch.where(flips.bool(), lowest + highest - rewards, rewards)


def entropy_min_reward(rollout: Rollout) -> Tensor:
    """Return (N,) minus the mean token entropy of each row; needs ``rollout.entropies``."""
    if rollout.entropies is None:
        raise ValueError("the entropy reward needs the entropies of the rollout")
    return -rollout.row_mean(rollout.entropies.detach())


class Reward(Part):
    """The source of the reward, if it is not the verifier."""

    source: Literal["verifier", "entropy_min"] = Field(
        "verifier",
        description="verifier = the task's reward; entropy_min = minus the row's mean token entropy, without a "
        "verifier.",
    )
    noise: Probability = Field(
        0.0,
        description="Fraction of completions whose reward is mirrored in the task's range: lowest + highest - reward "
        "(0 and 1 are swapped). Accuracy is that of the unchanged verdicts.",
    )

    @property
    def terms(self) -> tuple[str, ...]:
        source = () if self.source == "verifier" else (self.source,)
        return (*source, "noise") if self.noise > 0 else source

    def rewards(self, rollout: Rollout) -> Tensor:
        """Return (N,) the training rewards; NaN for a row that is excluded or has no tokens."""
        if self.source == "verifier":
            return rollout.rewards
        valid = rollout.mask.any(dim=1) & ~rollout.rewards.isnan()
        return torch.where(valid, entropy_min_reward(rollout).to(rollout.rewards), torch.nan)

    def contradictions(self, advantage: Advantage) -> Iterator[Contradiction]:
        if self.source == "entropy_min" and advantage.needs_correct:
            yield Contradiction(
                ("method.reward.source", "method.advantage.kind"),
                "method.reward.source=entropy_min uses no verifier, but method.advantage.kind="
                f"{advantage.kind_name} needs its verdicts. Set method.advantage=group",
            )
        if self.noise > 0 and self.source == "entropy_min":
            yield Contradiction(
                ("method.reward.noise", "method.reward.source"),
                f"method.reward.noise={self.noise:g} (mirrors the verifier's rewards) and "
                "method.reward.source=entropy_min (uses no verifier) cannot be combined. Remove one",
            )


RENT_PAPER = Paper("Maximizing Confidence Alone Improves Reasoning", "Prabhudesai et al.", "2505.22660")
LANDSCAPE_PAPER = Paper(
    "Towards Understanding the Optimization Landscape of GRPO and its Variants", "Jain et al.", None
)
PRESETS = (
    Modifier(
        "entropy-min",
        title="Entropy minimisation",
        summary="Rewards certainty instead of correctness: minus the mean token entropy.",
        paper=RENT_PAPER,
        golden=("entropy_min_reward",),
        extra_cost="token entropies: one forward per rollout, unless the sampler returns them",
        sets={"reward.source": ("entropy_min", "landscape paper, appendix C, after Prabhudesai et al.")},
    ),
    Modifier(
        "noise",
        title="Noisy rewards",
        summary="Mirrors the reward of a quarter of the completions in the task's range (0 becomes 1, 1 becomes 0).",
        paper=LANDSCAPE_PAPER,
        golden=("noisy_rewards",),
        sets={
            "reward.noise": (
                0.25,
                "landscape paper, appendix C: incorrect rewards for 25% of the rollouts; graded rewards are mirrored:"
                " our choice",
            )
        },
    ),
)
