"""The kinds of advantage: keys below `method.advantage`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlvr_cli.config.section import NotNegative, Probability, Section


class GroupAdvantageConfig(Section):
    """The reward against those of the same prompt (GRPO, Dr. GRPO)."""

    kind: Literal["group"] = Field("group", description="group = reward minus the group's mean.")
    scale: Literal["std", "none"] = Field(
        "std", description="Divide by the group's standard deviation (GRPO), or not (Dr. GRPO)."
    )


class RLOOAdvantageConfig(Section):
    """The reward against the mean of the others of the same prompt (RLOO)."""

    kind: Literal["rloo"] = Field("rloo", description="rloo = reward minus the mean of the group's others.")


class LikelihoodAdvantageConfig(Section):
    """Plus or minus one by correctness (PL, NL, CL)."""

    kind: Literal["likelihood"] = Field(
        "likelihood",
        description="likelihood = +1 on correct rows, -1 on wrong ones, by the verdict of the task's verifier.",
    )
    side: Literal["positive", "negative", "both"] = Field(
        "both", description="Which rows are trained on; the others get 0."
    )


class ReinforcePPAdvantageConfig(Section):
    """Whitened returns with the KL penalty inside the reward (REINFORCE++)."""

    kind: Literal["reinforce_pp"] = Field("reinforce_pp", description="reinforce_pp = whitened return-to-go.")
    kl_in_reward: NotNegative = Field(
        0.001, description="Weight of the per-token KL penalty (k1) inside the reward; 0 = no reference model."
    )
    gamma: Probability = Field(1.0, description="Discount of the return.")
    baseline: Literal["none", "group"] = Field(
        "none", description="group = the group's mean reward is subtracted before whitening."
    )


class GAEAdvantageConfig(Section):
    """Generalised advantage estimation with a value head (PPO)."""

    kind: Literal["gae"] = Field("gae", description="gae = advantages from a learned value head.")
    gamma: Probability = Field(1.0, description="Discount.")
    lam: Probability = Field(1.0, description="GAE's lambda.")
    whiten: bool = Field(True, description="Whiten advantages over all tokens of the rollout.")
    value_clip: Annotated[float, Field(gt=0.0)] | None = Field(
        0.5, description="The value may move this far from its prediction at sampling in one rollout; null = free."
    )
    value_coef: NotNegative = Field(1.0, description="Weight of the value loss.")
    value_lr_ratio: Annotated[float, Field(gt=0.0, le=1000.0)] = Field(
        10.0, description="Learning rate of the value head as a multiple of optimizer.lr."
    )
    value_backbone: bool = Field(False, description="Whether the value loss also trains the policy's own layers.")


AdvantageConfig = Annotated[
    GroupAdvantageConfig
    | RLOOAdvantageConfig
    | LikelihoodAdvantageConfig
    | ReinforcePPAdvantageConfig
    | GAEAdvantageConfig,
    Field(discriminator="kind"),
]
