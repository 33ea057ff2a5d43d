"""What may take the place of the verifier's reward: its mirror image on a share of the rows, and minus the entropy.

    noise:        R' = lowest + highest - R on flipped rows        (1 - R for rewards 0 and 1)
    entropy_min:  R' = -(mean token entropy of the row, nats)

Noise: "Towards Understanding the Optimization Landscape of GRPO and its Variants" (a quarter of the rollouts). Entropy:
Prabhudesai et al., "Maximizing Confidence Alone Improves Reasoning", arXiv:2505.22660 (RENT). Both come before the
advantage, so that group normalisation sees them.

How we differ from the papers: whether exactly a quarter is flipped or each row with probability 1/4 is not said; the
caller draws each row independently. Graded rewards, of which the paper says nothing, are mirrored in the task's range,
which is not the reward of the opposite verdict: with Knights & Knaves' 3, -0.5, -1 and -3 a flipped malformed answer
gets 3, a readable wrong one 0.5. The entropy is that of the sampling policy over the whole vocabulary, without
gradient; a row without any valid token gets reward 0.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Probability, Section
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.preset import Modifier, Paper


def flip(rewards: Tensor, flips: Tensor, lowest: float, highest: float) -> Tensor:
    """(N,) ``rewards``, mirrored in [``lowest``, ``highest``] where ``flips`` (N,) is true; NaN stays NaN."""
    return torch.where(flips.bool(), lowest + highest - rewards, rewards)


def entropy_min_reward(rollout: Rollout) -> Tensor:
    """(N,) minus the mean token entropy of each row; needs ``rollout.entropies``."""
    if rollout.entropies is None:
        raise ValueError("the entropy reward needs the entropies of the rollout")
    return -rollout.row_mean(rollout.entropies.detach())


class Reward(Section):
    """What takes the place of the verifier's reward."""

    source: Literal["verifier", "entropy_min"] = Field(
        "verifier",
        description="verifier = the task's reward; entropy_min = minus the row's mean token entropy, no verifier.",
    )
    noise: Probability = Field(
        0.0,
        description="Share of completions whose reward is mirrored in the task's range, lowest + highest - reward "
        "(0 and 1 change places); accuracy stays clean.",
    )


PAPER_1 = Paper("Maximizing Confidence Alone Improves Reasoning", "Prabhudesai et al.", "2505.22660")
PAPER_2 = Paper("Towards Understanding the Optimization Landscape of GRPO and its Variants", "Jain et al.", None)
PRESETS = (
    Modifier(
        "entropy-min",
        title="Entropy minimisation",
        summary="Rewards certainty in place of right answers: minus the mean token entropy.",
        paper=PAPER_1,
        golden=("entropy_min_reward",),
        extra_cost="the entropy of each position of the sampling policy once a rollout (one forward, unless the "
        "sampler tells it)",
        sets={
            "reward.source": ("entropy_min", "landscape paper, appendix C, after Prabhudesai et al."),
        },
    ),
    Modifier(
        "noise",
        title="Noisy rewards",
        summary="Mirrors the reward of a quarter of the completions in the task's range, so that 0 becomes 1 and 1 "
        "becomes 0.",
        paper=PAPER_2,
        golden=("noisy_rewards",),
        sets={
            "reward.noise": (
                0.25,
                "landscape paper, appendix C: incorrect rewards for 25% of the rollouts; graded rewards are mirrored:"
                " our choice",
            ),
        },
    ),
)
