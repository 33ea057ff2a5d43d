"""The keys of a training method: its choices, each with the parameters of the kind that is chosen.

A named method is a preset over these keys (`rlvr_cli.methods.preset`); every key may be set on its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from rlvr_cli.core.section import Count, NotNegative, Probability, Scale, Section, Text
from rlvr_cli.methods.aggregation import Aggregation
from rlvr_cli.methods.base import Advantage, RolloutShaping, TokenShaping, TokenWeight
from rlvr_cli.methods.grpo import ClippedRatio, GroupAdvantage
from rlvr_cli.methods.gtpo import ConflictMask, EntropyFilter, EntropyPenalty
from rlvr_cli.methods.high_entropy import HighEntropy
from rlvr_cli.methods.kl import KLPenalty
from rlvr_cli.methods.lopti import OnePass, Schedule
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.names import resolve_method_name
from rlvr_cli.methods.reward import Reward
from rlvr_cli.methods.reweight import Reweight
from rlvr_cli.methods.sft import SFT


def _canonical(name: str) -> str:
    found = resolve_method_name(name)
    if found.base == "sft":
        raise ValueError("sft is no policy-gradient method; its keys are those of SFT")
    return str(found)


MethodName = Annotated[Text, AfterValidator(_canonical)]


class ShapingConfig(Section):
    """Factors on the advantage."""

    reweight: Probability = Field(
        0.0,
        description="Advantage Reweighting's alpha: the factor is alpha p + 1 - alpha, p = old probability; 0 = off.",
    )
    high_entropy: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="Train only on this share of the rollout's tokens, those of the highest entropy; null = all."
    )
    conflict: Literal["off", "both", "prefix", "suffix"] = Field(
        "off",
        description="GTPO's conflict tokens: those that rows of positive and of negative advantage of a group share at "
        "the same place, counted from the start, from the end, or both.",
    )
    conflict_positive: Scale = Field(2.0, description="Factor on conflict tokens of rows with positive advantage.")
    conflict_negative: Scale = Field(0.0, description="Factor on conflict tokens of rows with negative advantage.")
    entropy_filter: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="Leave out rows whose mean token entropy is above this, in nats; null = off."
    )
    entropy_filter_rows: Literal["all", "negative"] = Field(
        "all", description="Which rows the entropy filter may leave out: all, or those of negative advantage."
    )
    entropy_filter_when: Literal["initially_below", "always"] = Field(
        "initially_below",
        description="initially_below = the filter is off where the untrained model's entropy is above it already.",
    )
    entropy_filter_samples: Count | None = Field(
        None,
        description="For initially_below: how many problems of the training set that entropy is measured on before the "
        "first rollout, one completion each (the GTPO paper: 100); null = on the first rollout.",
    )
    entropy_penalty: NotNegative = Field(
        0.0, description="GTPO's gamma: the advantage of a row is lowered by gamma times its mean token entropy."
    )


class PolicyMethodConfig(Section):
    """A policy-gradient method."""

    name: MethodName = Field(
        "grpo", description="A method, modifiers joined with +: `dgpo+lopti` (`rlvr methods` lists them)."
    )
    advantage: Advantage = Field(default=GroupAdvantage(), description="The advantage from the rewards.")
    weight: TokenWeight = Field(default=ClippedRatio(), description="The weight of a token from its ratio.")
    shaping: ShapingConfig = Field(default=ShapingConfig(), description="Factors on the advantage.")
    aggregation: Aggregation = Field(default=Aggregation(), description="What the sum over tokens is divided by.")
    schedule: Schedule = Field(default=OnePass(), description="The passes over a rollout.")
    kl: KLPenalty = Field(default=KLPenalty(), description="The KL penalty against the starting model.")
    reward: Reward = Field(default=Reward(), description="What is rewarded.")

    @property
    def passes(self) -> tuple[str, ...]:
        """What each pass over a rollout trains on: `all` tokens, or those of `low` or `high` probability."""
        return self.schedule.passes

    @property
    def needs_reference(self) -> bool:
        """Whether a second model is held, for a KL term in the loss or in the reward."""
        return self.kl.beta > 0 or self.advantage.needs_reference


def _family(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return "sft" if isinstance(name, str) and name.strip().lower() == "sft" else "policy"


MethodConfig = Annotated[
    Annotated[PolicyMethodConfig, Tag("policy")] | Annotated[SFT, Tag("sft")], Discriminator(_family)
]


def make_method(config: PolicyMethodConfig, *, max_length: int) -> Method:
    """The method that ``config`` describes.

    Args:
        max_length: longest completion in tokens, L of the aggregation ``constant_length``.
    """
    return Method(
        name=config.name,
        advantage=config.advantage,
        weight=config.weight,
        rollout_shaping=rollout_shaping(config.shaping),
        token_shaping=token_shaping(config.shaping),
        aggregation=config.aggregation.with_length(max_length),
        schedule=config.schedule,
        kl=config.kl,
        reward=config.reward.source,
        noise=config.reward.noise,
    )


def rollout_shaping(config: ShapingConfig) -> tuple[RolloutShaping, ...]:
    """The shapings that are on, so that GTPO's advantage is lambda d (A - gamma H)."""
    chosen: list[RolloutShaping] = []
    if config.entropy_penalty > 0:
        chosen.append(EntropyPenalty(config.entropy_penalty))
    if config.entropy_filter is not None:
        chosen.append(
            EntropyFilter(
                config.entropy_filter,
                config.entropy_filter_rows,
                config.entropy_filter_when,
                config.entropy_filter_samples,
            )
        )
    if config.conflict != "off":
        chosen.append(ConflictMask(config.conflict, config.conflict_positive, config.conflict_negative))
    if config.high_entropy is not None:
        chosen.append(HighEntropy(config.high_entropy))
    return tuple(chosen)


def token_shaping(config: ShapingConfig) -> tuple[TokenShaping, ...]:
    """Advantage Reweighting, if it is on."""
    return (Reweight(config.reweight),) if config.reweight > 0 else ()
