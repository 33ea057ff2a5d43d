"""The keys of a training method: its choices, each with the parameters of the kind that is chosen.

A named method is a preset over these keys (`presets/methods/`); every key may be set on its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from rlvr_cli.config.advantage_kinds import AdvantageConfig, GroupAdvantageConfig, ReinforcePPAdvantageConfig
from rlvr_cli.config.methods import resolve_method_name
from rlvr_cli.config.section import Count, NotNegative, Probability, Scale, Section, Text
from rlvr_cli.config.weight_kinds import ClipWeightConfig, WeightConfig


def _canonical(name: str) -> str:
    found = resolve_method_name(name)
    if found.base == "sft":
        raise ValueError("sft is no policy-gradient method; its keys are those of SFTConfig")
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


class AggregationConfig(Section):
    """What the sum over tokens is divided by."""

    kind: Literal["token_mean", "sequence_mean", "constant_length"] = Field(
        "token_mean",
        description="All tokens of the step; each row's length and then the number of rows; or max_new_tokens times "
        "the number of rows.",
    )
    rows: Literal["valid", "all", "trained", "trained_per_prompt"] = Field(
        "valid",
        description="Rows that are counted: those with a token, every one, or those with an advantage other than 0, in "
        "the whole step or (trained_per_prompt) for each prompt, so that prompts weigh the same; of no meaning for "
        "token_mean.",
    )


class OnePassScheduleConfig(Section):
    """All tokens in one pass."""

    kind: Literal["one_pass"] = Field("one_pass", description="one_pass = all tokens at once.")


class LoptiScheduleConfig(Section):
    """Tokens of low and of high probability in passes of their own (Lopti, selective updates)."""

    kind: Literal["lopti"] = Field("lopti", description="lopti = passes by the tokens' old probability.")
    order: Literal["low_first", "high_first", "low_only", "high_only"] = Field(
        "low_first", description="Which tokens are trained on, and in which order."
    )
    eta: Probability = Field(
        0.5, description="Tokens of old probability below eta are low; with rule quantile, the share that is low."
    )
    rule: Literal["probability", "quantile"] = Field(
        "probability", description="Whether eta is a probability or a quantile of the rollout's probabilities."
    )


# What each pass of a schedule trains on, in order.
PASSES = {
    "low_first": ("low", "high"),
    "high_first": ("high", "low"),
    "low_only": ("low",),
    "high_only": ("high",),
}

ScheduleConfig = Annotated[OnePassScheduleConfig | LoptiScheduleConfig, Field(discriminator="kind")]


class KLConfig(Section):
    """The KL penalty (k3) against the starting model."""

    beta: NotNegative = Field(0.0, description="Weight of the penalty; 0 = none, and no reference model.")
    log_ratio_clamp: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="The log ratio to the reference is cut off at +- this (5 in AR-Lopti's code); null = never."
    )
    value_clamp: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="The estimate is cut off above this (10 in verl); null = never."
    )


class RewardConfig(Section):
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


class PolicyMethodConfig(Section):
    """A policy-gradient method."""

    name: MethodName = Field(
        "grpo", description="A method, modifiers joined with +: `dgpo+lopti` (`rlvr methods` lists them)."
    )
    advantage: AdvantageConfig = Field(default=GroupAdvantageConfig(), description="The advantage from the rewards.")
    weight: WeightConfig = Field(default=ClipWeightConfig(), description="The weight of a token from its ratio.")
    shaping: ShapingConfig = Field(default=ShapingConfig(), description="Factors on the advantage.")
    aggregation: AggregationConfig = Field(
        default=AggregationConfig(), description="What the sum over tokens is divided by."
    )
    schedule: ScheduleConfig = Field(default=OnePassScheduleConfig(), description="The passes over a rollout.")
    kl: KLConfig = Field(default=KLConfig(), description="The KL penalty against the starting model.")
    reward: RewardConfig = Field(default=RewardConfig(), description="What is rewarded.")

    @property
    def passes(self) -> tuple[str, ...]:
        """What each pass over a rollout trains on: `all` tokens, or those of `low` or `high` probability."""
        return PASSES[self.schedule.order] if isinstance(self.schedule, LoptiScheduleConfig) else ("all",)

    @property
    def needs_reference(self) -> bool:
        """Whether a second model is held, for a KL term in the loss or in the reward."""
        advantage = self.advantage
        in_reward = isinstance(advantage, ReinforcePPAdvantageConfig) and advantage.kl_in_reward > 0
        return self.kl.beta > 0 or in_reward


class SFTConfig(Section):
    """Supervised fine-tuning on worked solutions."""

    name: Literal["sft"] = Field("sft", description="sft = imitate worked solutions, without rollouts or rewards.")
    demonstrations: Count = Field(1024, description="Number of the task's own worked solutions.")
    data: Text | None = Field(
        None, description="Worked solutions to use in place of the task's own: JSONL of prompt and completion."
    )

    @property
    def needs_reference(self) -> bool:
        """No second model is held."""
        return False

    @property
    def passes(self) -> tuple[str, ...]:
        """One pass over all tokens."""
        return ("all",)


def _family(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return "sft" if isinstance(name, str) and name.strip().lower() == "sft" else "policy"


MethodConfig = Annotated[
    Annotated[PolicyMethodConfig, Tag("policy")] | Annotated[SFTConfig, Tag("sft")], Discriminator(_family)
]
