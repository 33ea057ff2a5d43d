"""The training reward: its source, noise on a share of the completions, and a term for the length.

    noise:        R' = lowest + highest - R on flipped completions        (1 - R for rewards 0 and 1)
    entropy_min:  R' = -(mean token entropy of the completion, nats)

Noise: "Towards Understanding the Optimization Landscape of GRPO and its Variants" (a quarter of the rollouts). Entropy:
Prabhudesai et al., "Maximizing Confidence Alone Improves Reasoning", arXiv:2505.22660 (RENT). Other sources:
controls.py; length: length.py. All act before the advantage, in the order source, noise, length.

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
from dataclasses import replace
from typing import Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import Contradiction, Probability
from rlvr_cli.methods.base import Advantage, OpenShare, Part, Rollout
from rlvr_cli.methods.controls import CONTROLS
from rlvr_cli.methods.length import LengthReward, NoLengthReward
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
    """The training reward: its source, noise, and a term for the length."""

    source: Literal["verifier", "entropy_min", "random", "format", "incorrect", "majority"] = Field(
        "verifier",
        description="verifier = the task's reward; entropy_min = minus the row's mean token entropy, without a "
        "verifier; controls, 1 or 0: random = a coin toss, format = 1 for a readable answer, incorrect = 1 for a "
        "readable wrong one, majority = 1 for the most frequent answer of the prompt.",
    )
    probability: OpenShare = Field(0.5, description="Probability of the reward 1 with source random.")
    noise: Probability = Field(
        0.0,
        description="Fraction of completions whose reward is mirrored in the task's range: lowest + highest - reward "
        "(0 and 1 are swapped). Accuracy is that of the unchanged verdicts.",
    )
    length: LengthReward = Field(default=NoLengthReward(), description="A term for the length of the completion.")

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms that replace or change the verifier's reward."""
        return tuple(key if key == "noise" else value for key, value in self.changes.items())

    @property
    def changes(self) -> dict[str, str]:
        """The keys that replace or change the verifier's reward, with their values."""
        values = {"source": self.source, "noise": f"{self.noise:g}", "length": self.length.kind}
        neutral = {"source": "verifier", "noise": "0", "length": "none"}
        return {key: value for key, value in values.items() if value != neutral[key]}

    @property
    def is_control(self) -> bool:
        return self.source in CONTROLS

    @property
    def needs_group(self) -> tuple[str, str] | None:
        if self.source == "majority":
            return "method.reward.source", "method.reward.source=majority takes a vote of a prompt's completions"
        if self.length.compares:
            key = "method.reward.length"
            return key, f"{key}={self.length.kind} compares the lengths of a prompt's completions"
        return None

    def shape(self, rollout: Rollout) -> Rollout:
        """Return the rollout with the training rewards, NaN for a row that is excluded or has no tokens.

        ``rollout.rewards``: of the verifier or the control, with noise.
        """
        if self.source == "entropy_min":
            valid = rollout.mask.any(dim=1) & ~rollout.rewards.isnan()
            rewards = torch.where(valid, entropy_min_reward(rollout).to(rollout.rewards), torch.nan)
            rollout = replace(rollout, rewards=rewards)
        if self.length.kind == "none":
            return rollout
        terms = self.length.terms(rollout)
        rewards = (rollout.rewards.double() + terms).to(rollout.rewards.dtype)
        return replace(rollout, rewards=rewards, length_terms=terms)

    def contradictions(self, advantage: Advantage) -> Iterator[Contradiction]:
        kind = f"method.advantage.kind={advantage.kind_name}"
        if self.source == "entropy_min" and advantage.needs_correct:
            yield Contradiction(
                ("method.reward.source", "method.advantage.kind"),
                f"method.reward.source=entropy_min uses no verifier, but {kind} needs its verdicts. Set "
                "method.advantage=group",
            )
        for key, value in self.changes.items():
            reads = ""
            if not advantage.needs_rewards:
                reads = "no rewards. Set method.advantage.reward_weight above 0, or remove it"
            elif advantage.needs_parts:
                reads = "the parts of the verifier's reward. Remove one"
            elif advantage.needs_greedy and key == "source":
                reads = "the verifier's reward of a greedy completion. Remove one"
            elif advantage.needs_correct and key == "length":
                reads = "verdicts alone. Remove one"
            if reads:
                keys = (f"method.reward.{key}", "method.advantage.kind")
                yield Contradiction(keys, f"method.reward.{key}={value} changes the rewards, and {kind} reads {reads}")
        if self.source == "entropy_min" and self.length.compares:
            yield Contradiction(
                ("method.reward.length", "method.reward.source"),
                f"method.reward.length={self.length.kind} needs verdicts, and method.reward.source=entropy_min uses no "
                "verifier. Set method.reward.length=overlong, or remove one",
            )
        if self.noise > 0 and self.source != "verifier":
            yield Contradiction(
                ("method.reward.noise", "method.reward.source"),
                f"method.reward.noise={self.noise:g} (mirrors the verifier's rewards) and "
                f"method.reward.source={self.source} (uses others) cannot be combined. Remove one",
            )

    def unused(self, advantage: Advantage) -> Iterator[tuple[str, str, str]]:
        if self.source != "random":
            reason = f"method.reward.source={self.source} draws nothing. Set method.reward.source=random"
            yield "method.reward.probability", "method.reward.source", reason


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
