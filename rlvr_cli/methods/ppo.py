"""PPO with a value head: generalised advantage estimation and the clipped value loss.

    delta_t = r_t + gamma V_{t+1} - V_t            r_t = R on the last token, 0 elsewhere; V = 0 after the last token
    A_t     = delta_t + gamma lambda A_{t+1}       whitened over all valid tokens of the rollout
    returns = A_t (not whitened) + V_t
    value loss = 1/2 mean of max((v - returns)^2, (clip(v, V_t - c, V_t + c) - returns)^2)

GAE is equation 16 of arXiv:1506.02438, PPO arXiv:1707.06347; the settings are those of "Towards Understanding the
Optimization Landscape of GRPO and its Variants", equation 22 and appendix B (lambda = 1, reward 0 or 1, no KL; gamma is
not stated). gamma = 1, c = 0.5 and a critic learning rate ten times the policy's are verl's. Values are not bounded.

How we differ from the papers and from verl:

- Their critic is a separate network as large as the policy. Ours is one linear layer on the policy's last hidden states
  (`training/value_head.py`), and the value loss trains only that layer unless ``critic.backbone`` is set. So the
  landscape paper's results on PPO's values may not carry over.
- One mean over all valid tokens of the optimizer step instead of a mean of micro-batch means.
- If all advantages are equal, whitening gives exactly 0.
- A completion without a reward gets advantage 0, is left out of the whitening, and its own values are its returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import NotNegative, Probability
from rlvr_cli.methods.base import Advantage, Part, Rollout
from rlvr_cli.methods.preset import MethodPreset, Paper, trust_region
from rlvr_cli.methods.reinforce_pp import place_on_last_token, whiten


def gae(token_rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Return (N, T) advantages of right-padded rows before whitening; 0 on padding."""
    valid = mask.bool()
    values = torch.where(valid, values, 0.0)
    advantages = torch.zeros_like(values)
    running = torch.zeros_like(values[:, 0])
    following = torch.zeros_like(running)
    for position in reversed(range(values.shape[1])):
        delta = token_rewards[:, position] + gamma * following - values[:, position]
        running = torch.where(valid[:, position], delta + gamma * lam * running, 0.0)
        following = values[:, position]
        advantages[:, position] = running
    return advantages


def value_loss(
    predictions: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, count: Tensor, value_clip: float | None
) -> Tensor:
    """Return () the B rows' share of a step's value loss; differentiable in ``predictions``.

    Args:
        predictions: (B, T) v of the value head now. old_values: (B, T) V at sampling. returns: (B, T). mask: (B, T).
        count: () valid tokens of the whole optimizer step.
        value_clip: c, or None for no clip.
    """
    loss = (predictions - returns).square()
    if value_clip is not None:
        clipped = torch.minimum(torch.maximum(predictions, old_values - value_clip), old_values + value_clip)
        loss = torch.maximum(loss, (clipped - returns).square())
    return 0.5 * torch.where(mask.bool(), loss, 0.0).sum() / count.clamp(min=1).to(loss.dtype)


class GAEAdvantage(Advantage):
    """Advantages from a learned value head."""

    kind: Literal["gae"] = Field("gae", description="gae = advantages from a learned value head.")
    gamma: Probability = Field(1.0, description="Discount factor.")
    lam: Probability = Field(1.0, description="GAE's lambda.")
    whiten: bool = Field(True, description="Whiten advantages over all tokens of the rollout.")

    needs_values: ClassVar[bool] = True
    per_token: ClassVar[bool] = True

    def unwhitened(self, rollout: Rollout) -> Tensor:
        """Return (N, T) A_t in float64 before whitening; 0 on padding and on rows whose reward is NaN."""
        assert rollout.values is not None
        valid = rollout.mask.bool() & ~rollout.rewards.isnan().unsqueeze(1)
        token_rewards = place_on_last_token(rollout.rewards, rollout.mask)
        return gae(token_rewards, rollout.values.detach().double(), valid, self.gamma, self.lam)

    def advantages(self, rollout: Rollout) -> Tensor:
        advantages = self.unwhitened(rollout)
        if self.whiten:
            advantages = whiten(advantages, rollout.mask.bool() & ~rollout.rewards.isnan().unsqueeze(1))
        return advantages.to(rollout.rewards.dtype)

    def returns(self, rollout: Rollout) -> Tensor:
        """Return (N, T) the regression targets of the value head, not whitened, 0 on padding."""
        assert rollout.values is not None
        values = torch.where(rollout.mask.bool(), rollout.values.detach(), 0.0)
        return (self.unwhitened(rollout) + values).to(rollout.values.dtype)


class Critic(Part):
    """Loss and learning rate of the value head."""

    coef: NotNegative = Field(1.0, description="Weight of the value loss.")
    clip: Annotated[float, Field(gt=0.0)] | None = Field(
        0.5, description="Clip range of the value around its prediction at sampling; null = no clip."
    )
    lr_ratio: Annotated[float, Field(gt=0.0, le=1000.0)] = Field(
        10.0, description="Learning rate of the value head as a multiple of optimizer.lr."
    )
    backbone: bool = Field(False, description="Also train the policy's own layers with the value loss.")

    def unused(self, advantage: Advantage) -> Iterator[tuple[str, str, str]]:
        if not advantage.needs_values:
            reason = f"method.advantage.kind={advantage.kind_name} has no critic. Set method.advantage=gae"
            for name in type(self).model_fields:
                yield f"method.critic.{name}", "method.advantage.kind", reason


PAPER = Paper("Proximal Policy Optimization Algorithms", "Schulman et al.", "1707.06347")
PRESETS = (
    MethodPreset(
        "ppo",
        trainer="PPOTrainer",
        title="Proximal Policy Optimization",
        summary="An advantage per token from a linear value head on the policy's features (not a separate critic).",
        paper=PAPER,
        golden=("ppo_value",),
        extra_cost="a value head (one vector of the hidden size), one forward per rollout for its predictions, and its "
        "loss",
        inherits="grpo",
        sets={
            "advantage.kind": ("gae", "landscape paper, appendix B, equation 22; PPO paper, section 5"),
            "advantage.gamma": (1.0, "verl's default; the landscape paper's equation 22 leaves it open"),
            "advantage.lam": (1.0, "landscape paper, appendix B, equation 22 (lambda = 1); verl's default"),
            "advantage.whiten": (True, "verl's compute_gae_advantage_return: whitened over all valid tokens"),
            "critic.clip": (0.5, "verl's cliprange_value; not in the landscape paper"),
            "critic.coef": (1.0, "verl minimises the value loss (half the squared error) by itself, unscaled"),
            "critic.lr_ratio": (10.0, "verl: the critic's 1e-5 over the actor's 1e-6"),
            "critic.backbone": (
                False,
                "verl trains a separate critic; here only the head is trained by the value loss",
            ),
            "policy_loss.kind": ("ppo_clip", "PPO paper, equation 7; landscape paper, equation 21"),
            **trust_region(0.2, 0.2, "PPO paper, table 1, where 0.2 scores best; verl's default"),
            "aggregation.kind": (
                "token_mean",
                "verl's default; landscape paper, equation 21, divides by each row's length first",
            ),
            "kl.beta": (0.0, "landscape paper, appendix E: PPO without the KL term"),
        },
    ),
)
