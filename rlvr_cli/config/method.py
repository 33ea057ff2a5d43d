"""The keys of a training method: its choices, each with the parameters of the kind that is chosen.

A named method is a preset over these keys (`presets/methods/`); every key may be set on its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from rlvr_cli.config.methods import resolve_method_name
from rlvr_cli.config.section import Count, Probability, Section, Text

EpsLow = Annotated[float, Field(ge=0.0, le=1.0)]
EpsHigh = Annotated[float, Field(ge=0.0, le=100.0)]
Scale = Annotated[float, Field(ge=0.0, le=100.0)]
AboveOne = Annotated[float, Field(gt=1.0)]
OpenShare = Annotated[float, Field(gt=0.0, lt=1.0)]
NotNegative = Annotated[float, Field(ge=0.0)]


def _canonical(name: str) -> str:
    found = resolve_method_name(name)
    if found.base == "sft":
        raise ValueError("sft is no policy-gradient method; its keys are those of SFTConfig")
    return str(found)


MethodName = Annotated[Text, AfterValidator(_canonical)]


# --- advantage -------------------------------------------------------------------------------------------------


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

    kind: Literal["likelihood"] = Field("likelihood", description="likelihood = +1 on correct rows, -1 on wrong ones.")
    side: Literal["positive", "negative", "both"] = Field(
        "both", description="Which rows are trained on; the others get 0."
    )
    threshold: float = Field(0.0, description="Rows with a reward above this count as correct.")


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


# --- token weight ----------------------------------------------------------------------------------------------


class ClipWeightConfig(Section):
    """The importance ratio, cut off outside the trust region (PPO, GRPO, DAPO)."""

    kind: Literal["clip"] = Field("clip", description="clip = the ratio, no gradient where it left the trust region.")
    eps_low: EpsLow = Field(0.2, description="The trust region begins at 1 - eps_low.")
    eps_high: EpsHigh = Field(0.2, description="The trust region ends at 1 + eps_high.")
    dual_clip: AboveOne | None = Field(
        None, description="No gradient where the advantage is negative and the ratio above this; null = off."
    )


class CISPOWeightConfig(Section):
    """The clipped ratio as a constant weight: no token loses its gradient (CISPO)."""

    kind: Literal["cispo"] = Field("cispo", description="cispo = the ratio, clipped, for every token.")
    eps_low: EpsLow | None = Field(0.2, description="The weight is at least 1 - eps_low; null = no lower bound.")
    eps_high: EpsHigh = Field(0.2, description="The weight is at most 1 + eps_high.")


class GPPOWeightConfig(Section):
    """The bound's value beyond the trust region (GPPO, CE-GPPO)."""

    kind: Literal["gppo"] = Field("gppo", description="gppo = the ratio, beyond the bounds a share of the bound.")
    eps_low: EpsLow = Field(0.2, description="The trust region begins at 1 - eps_low.")
    eps_high: EpsHigh = Field(0.2, description="The trust region ends at 1 + eps_high.")
    beta1: Scale = Field(1.0, description="Weight below the region (negative advantage): beta1 (1 - eps_low).")
    beta2: Scale = Field(1.0, description="Weight above the region (positive advantage): beta2 (1 + eps_high).")
    dual_clip: AboveOne | None = Field(
        None, description="No gradient where the advantage is negative and the ratio above this; null = off."
    )


class ASPOWeightConfig(Section):
    """The reciprocal ratio for positive advantages (ASPO)."""

    kind: Literal["aspo"] = Field("aspo", description="aspo = 1/ratio for positive, ratio for negative advantages.")
    eps: EpsLow = Field(0.2, description="Half width of the trust region.")
    eps_high_entropy: EpsLow | None = Field(
        None, description="Half width on the row's high-entropy tokens; null = eps everywhere."
    )
    entropy_quantile: OpenShare = Field(
        0.8, description="Tokens of a row above this quantile of entropy count as high-entropy."
    )
    soft_clip_positive: AboveOne = Field(3.0, description="Largest weight of a positive advantage (ratio 1/3 at 3).")
    soft_clip_negative: AboveOne = Field(3.0, description="Largest weight of a negative advantage.")


class DGPOWeightConfig(Section):
    """Decoupled decay of the probability-gradient weight outside the bounds (DGPO)."""

    kind: Literal["dgpo"] = Field("dgpo", description="dgpo = polynomial decay below, radical decay above the region.")
    eps_low: EpsLow = Field(0.2, description="The trust region begins at 1 - eps_low.")
    eps_high: EpsHigh = Field(0.2, description="The trust region ends at 1 + eps_high.")
    n: Annotated[float, Field(ge=0.0, le=16.0)] = Field(1.0, description="Power of the decay below the region.")
    m: Annotated[float, Field(ge=1.0, le=16.0)] = Field(2.0, description="Root of the decay above the region.")


class ACPOWeightConfig(Section):
    """Bounds from the spread of the ratio in each probability bin (ACPO)."""

    kind: Literal["acpo"] = Field("acpo", description="acpo = the ratio, clipped at bounds of its probability bin.")
    alpha: Scale = Field(3.0, description="Standard deviations of the bin's ratio that the bound allows.")
    eps_b: EpsLow = Field(0.1, description="Added to the bound of every bin.")
    bins: Annotated[int, Field(ge=1, le=1000)] = Field(5, description="Number of probability bins.")
    edges: Literal["equal_width", "quantile"] = Field(
        "equal_width", description="Bins of equal width on [0, 1], or of equal share of the step's tokens."
    )
    bound: Literal["per_bin", "max", "mean"] = Field(
        "per_bin", description="Each bin its own bound, or one for all: the largest, or the tokens' average."
    )


class GSPOWeightConfig(Section):
    """The length-normalised ratio of the whole sequence (GSPO)."""

    kind: Literal["gspo"] = Field("gspo", description="gspo = one ratio for all tokens of a row, clipped.")
    eps_low: EpsLow = Field(3e-4, description="The trust region begins at 1 - eps_low.")
    eps_high: EpsHigh = Field(4e-4, description="The trust region ends at 1 + eps_high.")
    max_log_ratio: Annotated[float, Field(gt=0.0)] = Field(
        10.0, description="The sequence's log ratio is bounded above by this."
    )


class RatioWeightConfig(Section):
    """The importance ratio, never clipped."""

    kind: Literal["ratio"] = Field("ratio", description="ratio = importance sampling without clipping.")


class OneWeightConfig(Section):
    """Weight 1: no importance sampling."""

    kind: Literal["one"] = Field("one", description="one = no importance sampling, no clipping.")


WeightConfig = Annotated[
    ClipWeightConfig
    | CISPOWeightConfig
    | GPPOWeightConfig
    | ASPOWeightConfig
    | DGPOWeightConfig
    | ACPOWeightConfig
    | GSPOWeightConfig
    | RatioWeightConfig
    | OneWeightConfig,
    Field(discriminator="kind"),
]


# --- shaping, aggregation, schedule, KL, reward ------------------------------------------------------------------


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
        description="GTPO's conflict tokens: those that a correct and a wrong row of a group share at the same place, "
        "counted from the start, from the end, or both.",
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
    rows: Literal["valid", "all", "trained"] = Field(
        "valid",
        description="Rows that are counted: those with a token, every one, or those with an advantage other than 0; "
        "of no meaning for token_mean.",
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
        0.0, description="Share of completions that are given the reward of the opposite verdict; accuracy stays clean."
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


class SFTConfig(Section):
    """Supervised fine-tuning on worked solutions."""

    name: Literal["sft"] = Field("sft", description="sft = imitate worked solutions, without rollouts or rewards.")
    demonstrations: Count = Field(1024, description="Number of the task's own worked solutions.")
    data: Text | None = Field(
        None, description="Worked solutions to use in place of the task's own: JSONL of prompt and completion."
    )
    lora_rank: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="Rank of the low-rank adapters (LoRA) that are trained; null = every weight is."
    )
    lora_alpha: Annotated[float, Field(gt=0.0)] = Field(32.0, description="Scale of the adapters: lora_alpha / rank.")

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
