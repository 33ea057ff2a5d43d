"""REINFORCE++: the KL penalty inside the reward, returns whitened over the whole rollout, no groups.

    r_t = R [only on the last token] - beta (log pi_old - log pi_ref)
    G_t = r_t + gamma G_{t+1}
    A_t = (G_t - mean) / sqrt(var + 1e-8)        mean and var (ddof 1) over all valid tokens of the rollout

Hu, "REINFORCE++", arXiv:2501.03262, section 3, with the settings of AR-Lopti (arXiv:2505.12929, appendix D): beta =
0.001, gamma = 1, clip 0.2 and 0.24, token mean, no KL loss. ``baseline: group`` first subtracts the group's mean reward
from R (verl's REINFORCE++-baseline); a group of one keeps its reward.

How we differ from the paper: appendix D prints the penalty as a ratio without the logarithm, and with the current
policy. Like its code, we use the log-probs of the sampling policy.

How we differ from the released code:

- If all returns are equal (equal rewards, no KL), the advantages are exactly 0. With equal rewards and the KL penalty,
  whitening scales even tiny KL noise to unit size, there and here.
- verl's baseline variant spreads the summed reward, KL included, over all tokens. We keep the return-to-go, which is
  the same without KL at gamma 1.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.lazy import Tensor, torch
from rlvr_cli.core.section import NotNegative, Probability
from rlvr_cli.methods.base import Advantage, Rollout
from rlvr_cli.methods.grpo import group_advantage
from rlvr_cli.methods.preset import MethodPreset, Paper, trust_region

WHITENING_EPSILON = 1e-8


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Return (N, T) (values - mean) / sqrt(var + 1e-8) over all tokens of ``mask``, var with ddof 1; 0 elsewhere.

    Equal values give exactly 0, without the rounding error of the mean.
    """
    valid = mask.bool()
    chosen = values.double()[valid]
    if not len(chosen) or bool(chosen.min() == chosen.max()):
        return torch.zeros_like(values)
    deviation = chosen - chosen.mean()
    variance = deviation.square().sum() / (len(chosen) - 1)
    result = torch.zeros_like(values, dtype=torch.float64)
    result[valid] = deviation * torch.rsqrt(variance + WHITENING_EPSILON)
    return result.to(values.dtype)


def place_on_last_token(rewards: Tensor, mask: Tensor) -> Tensor:
    """Return (N, T) float64: each row's reward on its last valid token, 0 elsewhere and for NaN."""
    valid = mask.bool()
    positions = torch.arange(1, valid.shape[1] + 1, device=mask.device)
    last = valid & (positions == (valid * positions).amax(dim=1, keepdim=True))
    return torch.where(last, rewards.double().nan_to_num(nan=0.0).unsqueeze(1), 0.0)


def discounted_returns(token_rewards: Tensor, gamma: float) -> Tensor:
    """Return (N, T) G_t = r_t + gamma G_{t+1} of (N, T) rewards that are 0 on padding."""
    returns = torch.empty_like(token_rewards)
    running = torch.zeros_like(token_rewards[:, 0])
    for position in reversed(range(token_rewards.shape[1])):
        running = token_rewards[:, position] + gamma * running
        returns[:, position] = running
    return returns


class ReinforcePPAdvantage(Advantage):
    """Whitened return-to-go; a row without a reward gets 0 and is excluded from whitening."""

    kind: Literal["reinforce_pp"] = Field("reinforce_pp", description="reinforce_pp = whitened return-to-go.")
    kl_in_reward: NotNegative = Field(
        0.001,
        description="Weight of the per-token KL penalty (k1) in the reward; 0 = no penalty and no reference model.",
    )
    gamma: Probability = Field(1.0, description="Discount factor of the return.")
    baseline: Literal["none", "group"] = Field(
        "none", description="group = subtract the group's mean reward before whitening; none = no baseline."
    )

    per_token: ClassVar[bool] = True

    @property
    def needs_group(self) -> tuple[str, str] | None:
        if self.baseline == "none":
            return None
        reason = "method.advantage.baseline=group subtracts the mean reward of the prompt's completions"
        return "method.advantage.baseline", reason

    @property
    def needs_reference(self) -> bool:
        return self.kl_in_reward > 0

    def token_rewards(self, rollout: Rollout) -> Tensor:
        """Return (N, T) r_t in float64, 0 on padding."""
        rewards = rollout.rewards.double()
        if self.baseline == "group":
            unknown = rewards.isnan()
            rewards = group_advantage(rewards, rollout.group_size, divide_by_std=False).masked_fill(unknown, torch.nan)
        result = place_on_last_token(rewards, rollout.mask)
        if self.needs_reference:
            assert rollout.old_log_probs is not None and rollout.ref_log_probs is not None
            penalty = self.kl_in_reward * (rollout.old_log_probs.double() - rollout.ref_log_probs.double())
            result = torch.where(rollout.mask.bool(), result - penalty, 0.0)
        return result

    def returns(self, rollout: Rollout) -> Tensor:
        """Return (N, T) G_t in float64, before whitening; arbitrary on padding."""
        return discounted_returns(self.token_rewards(rollout), self.gamma)

    def advantages(self, rollout: Rollout) -> Tensor:
        valid = rollout.mask.bool() & ~rollout.rewards.isnan().unsqueeze(1)
        return whiten(self.returns(rollout), valid).to(rollout.rewards.dtype)


PAPER = Paper("REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models", "Hu", "2501.03262")
PRESETS = (
    MethodPreset(
        "reinforce-pp",
        trainer="ReinforcePPTrainer",
        aliases=("reinforce++",),
        title="REINFORCE++",
        summary="Returns with the KL penalty inside the reward, whitened over all tokens of the rollout.",
        paper=PAPER,
        golden=("reinforce_pp",),
        extra_cost="one reference-model forward per rollout (KL penalty in the reward)",
        inherits="grpo",
        sets={
            "advantage.kind": ("reinforce_pp", "AR-Lopti paper, equation 20"),
            "advantage.kl_in_reward": (0.001, "AR-Lopti paper, equation 20 and appendix D.2: as for GRPO, table 2"),
            "advantage.gamma": (1.0, "AR-Lopti paper, equation 20: no discount; verl's default"),
            "advantage.baseline": (
                "none",
                "AR-Lopti paper, equation 20: no group; verl's reinforce_plus_plus_baseline subtracts the group's mean",
            ),
            "policy_loss.kind": ("ppo_clip", "AR-Lopti paper, equation 21"),
            **trust_region(0.2, 0.24, "AR-Lopti paper, appendix D.2: as for GRPO, table 2"),
            "policy_loss.dual_clip": (
                None,
                "off: no term of the AR-Lopti paper's equation 21; 10 in the released scripts",
            ),
            "aggregation.kind": ("token_mean", "AR-Lopti paper, equation 21"),
            "kl.beta": (0.0, "AR-Lopti paper, equation 21: the penalty is in the reward, not in the loss"),
        },
    ),
)
