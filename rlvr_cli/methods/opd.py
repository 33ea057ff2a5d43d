"""On-policy distillation: a teacher judges every token of the policy's own completions.

    A_t = clip(log pi_T - log pi_old, -c, c) + w A        A = (R - mean) / (std + 1e-6), GRPO's

pi_T is the teacher, and all three are log-probs of the sampled token at the sampling temperature. On-policy the mean of
A_t grad log pi over the tokens that pi may sample is, without the clip, minus the gradient of the reverse KL divergence
KL(pi || pi_T) at that position: exact in expectation, one sample of it here. w = 0 (the default) is distillation alone,
for which no reward is read; a completion that could not be judged (NaN) is left out all the same.

Lu and Thinking Machines Lab, "On-Policy Distillation" (2025), after GKD (arXiv:2306.13649). As there, a token answers
for its own divergence alone (discount 0), not for that of the tokens after it, so the gradient is not that of the
divergence of whole completions.

How we differ from the released code:

- tinker-cookbook adds kl_penalty_coef times the log ratio to the reward's advantage, slime --opd-kl-coef times; w is 1
  over that coefficient, and the step its multiple. Their clip is none, and tinker's reward is only centred.
- prime-rl's ref_kl_loss_fn takes the log ratio to the current policy instead of the old one, drops tokens whose
  probability fell by more than 0.2, and adds 0.001 log(r)^2. The same at the first update.
- tinker's loss is the unclipped ratio (or PPO's), ``policy_loss=is`` here. The same at one update per rollout.
- verl and TRL also distil whole distributions (top k tokens, forward KL, Jensen-Shannon): not an advantage, not here.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import NotNegative, Text
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.grpo import group_advantage
from rlvr_cli.methods.preset import MethodPreset, Paper, trust_region

KEY = "method.advantage.teacher"


def check_teacher(method: str, advantage: Advantage) -> None:
    """Raise UserError if the advantage of the method of this name needs a teacher and none is named."""
    if advantage.needs_teacher and getattr(advantage, "teacher", None) is None:
        raise UserError(f"method {method} learns from a teacher. Set {KEY} to a run, a model folder or a hub id.")


class TeacherAdvantage(Advantage):
    """The log ratio of teacher and policy at each token, with or without a reward."""

    kind: Literal["teacher"] = Field("teacher", description="teacher = log-prob under a teacher minus the policy's.")
    teacher: Text | None = Field(
        None,
        description="The teacher, which has the policy's tokenizer: a run (its newest checkpoint), a model folder, a "
        "preset or a hub id. Required.",
    )
    clip: Annotated[float, Field(gt=0.0)] = Field(10.0, description="Bound of the log ratio on both sides, nats.")
    reward_weight: NotNegative = Field(
        0.0, description="Weight of the reward's advantage, GRPO's, added to the log ratio; 0 = no reward is read."
    )

    needs_teacher: ClassVar[bool] = True
    per_token: ClassVar[bool] = True

    @property
    def needs_rewards(self) -> bool:
        return self.reward_weight > 0

    @property
    def needs_group(self) -> tuple[str, str] | None:
        reason = f"method.advantage.reward_weight={self.reward_weight:g} compares the completions of a prompt"
        return ("method.advantage.reward_weight", reason) if self.needs_rewards else None

    def log_ratios(self, rollout: Rollout) -> Tensor:
        """Return (N, T) log pi_T - log pi_old in float64; 0 on padding and for rows whose reward is NaN."""
        assert rollout.teacher_log_probs is not None and rollout.old_log_probs is not None
        valid = rollout.mask.bool() & ~rollout.rewards.isnan().unsqueeze(1)
        return torch.where(valid, rollout.teacher_log_probs.double() - rollout.old_log_probs.double(), 0.0)

    def advantages(self, rollout: Rollout) -> Tensor:
        advantages = self.log_ratios(rollout).clamp(-self.clip, self.clip)
        if self.needs_rewards:
            rewarded = group_advantage(rollout.rewards.double(), rollout.group_size, divide_by_std=True)
            advantages = advantages + self.reward_weight * rewarded.unsqueeze(1)
        return advantages.to(rollout.rewards.dtype)

    def metrics(self, rollout: Rollout) -> dict[str, float]:
        """Return the mean of log pi_old - log pi_T, unclipped, and the share of clipped tokens."""
        ratios, tokens = self.log_ratios(rollout), rollout.mask.bool().sum().clamp(min=1)
        clipped = (ratios.abs() > self.clip).sum() / tokens
        return {"kl_teacher": float(-ratios.sum() / tokens), "teacher_clipped": float(clipped)}


PAPER = Paper(
    "On-Policy Distillation", "Lu, Thinking Machines Lab (2025), thinkingmachines.ai/blog/on-policy-distillation"
)
PRESETS = (
    MethodPreset(
        "opd",
        trainer="OPDTrainer",
        title="On-Policy Distillation",
        summary="A teacher judges every token of the policy's own completions: reverse KL, with or without a reward.",
        paper=PAPER,
        golden=("opd",),
        extra_cost="a second model in memory, and one forward of it per rollout",
        inherits="grpo",
        sets={
            "advantage.kind": ("teacher", "the article: minus the reverse KL of each token as its advantage"),
            "advantage.teacher": (None, "to be set: a model with the policy's tokenizer"),
            "advantage.clip": (10.0, "our choice, against tokens that the teacher rules out; the article has none"),
            "advantage.reward_weight": (0.0, "the article: no reward but the teacher's"),
            "policy_loss.kind": ("ppo_clip", "as grpo here; tinker-cookbook: the unclipped ratio, or PPO's"),
            **trust_region(0.2, 0.2, "as grpo here"),
            "aggregation.kind": ("token_mean", "as grpo here; prime-rl's ref_kl: its tokens' mean"),
            "kl.beta": (0.0, "the article: no other penalty"),
        },
    ),
)
