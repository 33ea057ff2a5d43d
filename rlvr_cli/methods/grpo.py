"""GRPO, DAPO and Dr. GRPO: the clipped importance ratio, with advantages relative to the prompt's group.

    l = max(-A r, -A clip(r, 1 - eps_low, 1 + eps_high))        r = pi / pi_old
    F = r, but 0 in LN (r < 1 - eps_low, A < 0) and HP (r > 1 + eps_high, A > 0)

    A = (R - mean) / (std + 1e-6)        GRPO
    A = R - mean                         Dr. GRPO
    A = (R - mean) / (batch std + 1e-6)  scale: batch

All tokens of a completion share A; mean and std are those of the prompt's completions. The clip is equation 7 of the
PPO paper (arXiv:1707.06347) and equation 3 of DeepSeekMath (arXiv:2402.03300); DAPO's higher upper bound is equation 10
of arXiv:2503.14476. GRPO's A is in DeepSeekMath, section 4.1.2, Dr. GRPO's in arXiv:2503.20783, section 3.2. No paper
prints the 1e-6 or the sample standard deviation (ddof 1); both are verl's. ``scale: batch`` divides by the standard
deviation of all rewards of the rollout, as TRL's ``scale_rewards="batch"`` ("Tricks or Traps?", arXiv:2508.08221).

How we differ from the released code:

- verl always adds a dual clip (F = 0 where r > c and A < 0; c = 3, in recipes of DAPO and AR-Lopti 10). Here it is off
  unless ``dual_clip`` is set.
- verl clamps the log ratio to +-20; we don't.
- Advantages are computed in float64, and a group of equal rewards gives exactly 0. TRL's epsilon is 1e-4.
- A token mean divides by the tokens of the optimizer step, as verl does. With several updates per rollout TRL
  divides every step by the rollout's tokens over the number of steps; a step differs by a few percent.
- A completion without a reward (None from every reward function, or a verifier that could not judge it) counts as not
  sampled: it leaves baseline, divisor, statistics and KL term (``aggregation.sequences: all`` still counts the row).
  TRL gives it the advantage 0 and keeps its tokens in divisor and KL term.
- The KL term has no importance ratio, as in DeepSeekMath, equation 3. TRL multiplies it by the ratio by default
  (DeepSeek-V3.2, arXiv:2512.02556, equation 7): ``kl.bias_correction=true``.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.methods.base import AboveOne, Advantage, EpsHigh, EpsLow, PolicyLoss, Rollout, Tokens
from rlvr_cli.methods.preset import MethodPreset, Paper, trust_region

STD_EPSILON = 1e-6


class PPOClip(PolicyLoss):
    """The importance ratio, cut off outside the trust region."""

    kind: Literal["ppo_clip"] = Field(
        "ppo_clip", description="ppo_clip = the clipped ratio: no gradient outside the trust region."
    )
    eps_low: EpsLow = Field(0.2, description="Lower bound of the trust region: ratio 1 - eps_low.")
    eps_high: EpsHigh = Field(0.2, description="Upper bound of the trust region: ratio 1 + eps_high.")
    dual_clip: AboveOne | None = Field(
        None,
        description="Dual clip: no gradient where the advantage is negative and the ratio exceeds this; null = off.",
    )

    def bounds(self, tokens: Tokens, statistics: Tensor | None = None) -> tuple[float, float]:
        return self.eps_low, self.eps_high

    def weight(self, tokens: Tokens, statistics: Tensor | None = None) -> Tensor:
        regions = self.regions(tokens)
        ratio = tokens.ratio.detach()
        cut = regions.LN | regions.HP
        if self.dual_clip is not None:
            cut = cut | dual_clip_mask(tokens, self.dual_clip)
        return torch.where(cut, 0.0, ratio)


def dual_clip_mask(tokens: Tokens, limit: float) -> Tensor:
    """Return (B, T) True where the advantage is negative and the ratio exceeds ``limit``."""
    return (tokens.ratio.detach() > limit) & (tokens.advantages < 0)


def group_advantage(rewards: Tensor, group_size: int, *, divide_by_std: bool) -> Tensor:
    """Return (N,) advantages in the dtype of ``rewards`` (N,), whose groups are contiguous.

    NaN excludes a completion: A = 0, and it is left out of its group's statistics. A group of one keeps its reward,
    divided by 1 + 1e-6 with ``divide_by_std`` (mean 0 and std 1, as in verl). Raises ValueError if N is not a multiple
    of ``group_size``.
    """
    if rewards.numel() % group_size:
        raise ValueError(f"{rewards.numel()} rewards do not form groups of {group_size}")
    grouped = rewards.double().view(-1, group_size)
    has_reward = ~grouped.isnan()
    count = has_reward.sum(dim=1, keepdim=True)
    filled = grouped.nan_to_num(nan=0.0)
    mean = filled.sum(dim=1, keepdim=True) / count.clamp(min=1)
    deviation = torch.where(has_reward, grouped - mean, 0.0)
    std = (deviation.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    lowest = grouped.nan_to_num(nan=float("inf")).amin(dim=1, keepdim=True)
    highest = grouped.nan_to_num(nan=float("-inf")).amax(dim=1, keepdim=True)
    deviation = torch.where(lowest == highest, 0.0, deviation)
    if group_size == 1:
        deviation, std = filled, torch.ones_like(std)
    advantages = deviation / (std + STD_EPSILON) if divide_by_std else deviation
    return advantages.reshape(-1).to(rewards.dtype)


def sample_std(values: Tensor) -> Tensor:
    """Return () the standard deviation (ddof 1, float64) of (N,) ``values`` without NaN; 0 for fewer than two."""
    finite = values.double()[~values.isnan()]
    return finite.std() if len(finite) > 1 else finite.new_zeros(())


def count_rewarded(rewards: Tensor, group_size: int) -> Tensor:
    has_reward = ~rewards.isnan().view(-1, group_size)
    return has_reward.sum(dim=1, keepdim=True).expand_as(has_reward).reshape(-1)


class GroupAdvantage(Advantage):
    """The reward relative to the prompt's other completions."""

    kind: Literal["group"] = Field("group", description="group = reward minus the group's mean.")
    scale: Literal["std", "none", "batch"] = Field(
        "std",
        description="std = divide by the group's standard deviation (GRPO); none = do not divide (Dr. GRPO); batch = "
        "divide by the standard deviation of all rewards of the rollout.",
    )

    compares_group: ClassVar[bool] = True

    def advantages(self, rollout: Rollout) -> Tensor:
        rewards = rollout.rewards.double()
        values = group_advantage(rewards, rollout.group_size, divide_by_std=self.scale == "std")
        if self.scale == "batch":
            values = values / (sample_std(rewards) + STD_EPSILON)
        return values.to(rollout.rewards.dtype).unsqueeze(1)


PAPER_1 = Paper(
    "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", "Shao et al.", "2402.03300"
)
PAPER_2 = Paper("DAPO: An Open-Source LLM Reinforcement Learning System at Scale", "Yu et al.", "2503.14476")
PAPER_3 = Paper("Understanding R1-Zero-Like Training: A Critical Perspective", "Liu et al.", "2503.20783")
PRESETS = (
    MethodPreset(
        "grpo",
        trainer="GRPOTrainer",
        title="Group Relative Policy Optimization",
        summary="PPO's clipped ratio, with advantages relative to the other completions of the prompt.",
        paper=PAPER_1,
        golden=("grpo", "advantages"),
        extra_cost="none (the baseline)",
        sets={
            "advantage.kind": ("group", "DeepSeekMath, section 4.1.2: relative to the prompt's group"),
            "advantage.scale": ("std", "DeepSeekMath, section 4.1.2: divided by the group's standard deviation"),
            "policy_loss.kind": ("ppo_clip", "DeepSeekMath, equation 3"),
            **trust_region(
                0.2,
                0.2,
                "PPO paper (arXiv:1707.06347), table 1, where 0.2 scores best; verl's default; DGPO paper, table 12",
            ),
            "policy_loss.dual_clip": (
                None,
                "off: not in the paper's formula; verl adds it to every run (3; 10 in recipes)",
            ),
            "aggregation.kind": (
                "token_mean",
                "AR-Lopti paper, equation 1; DGPO paper, equation 10. DeepSeekMath and the ACPO paper divide by each "
                "completion's length first: method.aggregation=sequence_mean",
            ),
            "passes.kind": ("one_pass", "every token in each update, as in the paper's objective"),
            "kl.beta": (0.0, "DGPO paper, appendix B.4, and DAPO. DeepSeekMath: 0.04; AR-Lopti paper: 0.001"),
        },
    ),
    MethodPreset(
        "dapo",
        trainer="DAPOTrainer",
        title="Decoupled Clip and Dynamic Sampling Policy Optimization",
        summary="GRPO with a higher upper bound (clip-higher) and one divisor for all tokens.",
        paper=PAPER_2,
        golden=("dapo",),
        extra_cost="none; with rollout.dynamic_sampling, the replacement samples",
        inherits="grpo",
        sets={
            "policy_loss.kind": ("ppo_clip", "DAPO paper, equation 8"),
            "policy_loss.eps_low": (0.2, "DAPO paper, section 4.1"),
            "policy_loss.eps_high": (0.28, "DAPO paper, section 4.1 (clip-higher)"),
            "policy_loss.dual_clip": (None, "off: no term of DAPO's equation 8; 10 in verl's DAPO recipe"),
            "aggregation.kind": ("token_mean", "DAPO paper, equation 8 (token-level loss)"),
            "kl.beta": (0.0, "DAPO paper, section 2.3: no KL penalty"),
        },
    ),
    MethodPreset(
        "dr-grpo",
        trainer="DrGRPOTrainer",
        title="Group Relative Policy Optimization Done Right",
        summary="GRPO without its two divisions, by length and by standard deviation.",
        paper=PAPER_3,
        golden=("dr_grpo", "advantages"),
        inherits="grpo",
        sets={
            "advantage.kind": ("group", "Dr. GRPO paper, section 3.2: the reward minus the group's mean"),
            "advantage.scale": ("none", "Dr. GRPO paper: no division by the standard deviation"),
            "policy_loss.kind": ("ppo_clip", "Dr. GRPO paper: GRPO's clip is kept"),
            **trust_region(0.2, 0.2, "verl's default; the paper keeps GRPO's clip"),
            "aggregation.kind": (
                "constant_length",
                "Dr. GRPO paper: a constant instead of each length, rollout.max_new_tokens here",
            ),
            "aggregation.sequences": ("all", "Dr. GRPO paper: the mean over all completions of a group"),
            "kl.beta": (0.0, "Dr. GRPO paper: no KL penalty"),
        },
    ),
)
