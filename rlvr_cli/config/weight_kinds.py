"""The kinds of token weight: keys below `method.weight`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rlvr_cli.config.section import Scale, Section

EpsLow = Annotated[float, Field(ge=0.0, le=1.0)]
EpsHigh = Annotated[float, Field(ge=0.0, le=100.0)]
AboveOne = Annotated[float, Field(gt=1.0)]
OpenShare = Annotated[float, Field(gt=0.0, lt=1.0)]


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
        "per_bin",
        description="Each bin its own bound; or for all tokens one: max = the largest bound above, 0.2 below; "
        "mean = the tokens' average on both sides.",
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
