"""The analyses of `rlvr analyze`: what each is for, and the keys that it takes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rlvr_cli.config.schema import CountOrZero, FromList
from rlvr_cli.core.section import Count, Section, Text


def _rising(bounds: tuple[Any, ...]) -> tuple[Any, ...]:
    if any(low >= high for low, high in itertools.pairwise(bounds)):
        raise ValueError("must rise")
    return bounds


Bounds = Annotated[
    tuple[Annotated[float, Field(gt=0.0, lt=1.0)], ...], FromList, Field(min_length=1), AfterValidator(_rising)
]
Share = Annotated[float, Field(gt=0.0, lt=1.0)]
Methods = Annotated[tuple[Text, ...], FromList, Field(min_length=1, max_length=8)]


class ProbabilityOptions(Section):
    """Keys of `rlvr analyze probability`."""

    methods: Methods = Field(
        ("grpo", "grpo+reweight", "grpo+lopti"),
        description="Methods whose step is followed, each with overrides of its keys if need be, as "
        "lopti:schedule.order=high_first; the gradients of groups are those of the first.",
    )
    bounds: Bounds = Field((0.25, 0.5, 0.75), description="Where one group of tokens ends and the next begins.")
    groups: Literal["probability", "quantile"] = Field(
        "probability", description="What bounds divides: the tokens' old probability, or their number."
    )
    lr: Annotated[float, Field(gt=0.0, le=1e6)] = Field(
        0.1, description="Learning rate of the one step of plain SGD; AR-Lopti has 1e-3 on 7 billion weights."
    )
    rows: Count = Field(256, description="Completions that are looked at; of more, so many are drawn.")
    tokens: CountOrZero = Field(200, description="Tokens of each group whose gradient is measured one at a time.")
    dtype: Literal["float32", "float64"] | None = Field(
        None, description="Of the weights; null = float64 on a CPU, float32 on a GPU."
    )
    seed: CountOrZero = Field(0, description="Of the draw of those tokens.")


class RatioOptions(Section):
    """Keys of `rlvr analyze ratio`."""

    updates: Annotated[tuple[Count, ...], FromList, Field(min_length=1, max_length=16), AfterValidator(_rising)] = (
        Field((1, 2, 4, 8, 16), description="Updates on the rollout after which the ratios are looked at.")
    )
    split: Count | None = Field(
        None, description="Parts that the rollout is split into, one for each update; null = as many as in the run."
    )
    optimizer: Literal["adamw", "sgd"] = Field(
        "adamw", description="adamw: as the run's, with its state at that point where it was kept; or plain sgd."
    )
    lr: Annotated[float, Field(gt=0.0, le=1e6)] | None = Field(
        None, description="Learning rate; null = the run's at that point. With sgd it must be given."
    )
    bins: Annotated[int, Field(ge=2, le=100)] = Field(
        5, description="Bins of old probability of one width; the first are the low tokens, the last the high ones."
    )
    groups: Annotated[int, Field(ge=3, le=200)] = Field(
        20, description="Groups of as many tokens each, by 1 - p, to which the exponent of the spread is fitted."
    )
    dtype: Literal["float32", "float64"] | None = Field(
        None, description="Of the weights; null = float64 on a CPU, float32 on a GPU."
    )


class DirectionsOptions(Section):
    """Keys of `rlvr analyze directions`."""

    method: Text = Field("grpo", description="The full update, which all others are compared with.")
    k: Count | None = Field(
        None, description="Directions of a matrix; null = a 16th of its shorter side, 128 (the paper's) at most."
    )
    side: Literal["right", "left"] = Field("right", description="Singular vectors: right (the paper's) or left.")
    low: Share = Field(0.2, description="Old probability below which a token is in the group `low`.")
    high: Share = Field(0.8, description="Old probability above which a token is in the group `high`.")
    entropy: Share = Field(0.2, description="Share of the tokens, those of highest entropy, in the group `entropy`.")
    rows: Count = Field(256, description="Completions in the gradients; of more, as many are drawn at random.")
    matrices: Count | None = Field(None, description="Most weight matrices to take angles of; null = all.")


class WeightsOptions(Section):
    """Keys of `rlvr analyze weights`."""

    methods: Methods = Field(
        ("grpo", "cispo", "gppo", "ce-gppo", "aspo", "dgpo"), description="Methods whose weights are compared."
    )
    eps_low: Share = Field(0.2, description="Regions: a ratio below 1 - this is low.")
    eps_high: Annotated[float, Field(gt=0.0)] = Field(0.2, description="Regions: a ratio above 1 + this is high.")
    gradients: bool = Field(True, description="Measure the bias on gradients too, not on the coefficients alone.")
    rows: Count = Field(256, description="Completions in those gradients; of more, as many are drawn at random.")


class ConflictsOptions(Section):
    """Keys of `rlvr analyze conflicts`."""

    rollouts: Count = Field(10, description="Saved rollouts that are looked at, the last of them --rollout.")
    top: Count = Field(12, description="Tokens shown: those that are most often in conflict.")


class WordsOptions(Section):
    """Keys of `rlvr analyze words`."""

    lists: Text | None = Field(
        None, description="YAML file of lists of words (docs/analyses/words.md); null = AR-Lopti's table 5."
    )
    per: Literal["completion", "100 words"] = Field("completion", description="What a frequency is of.")
    rollouts: Count = Field(10, description="Saved rollouts that are looked at, the last of them --rollout.")
    evaluation: Text | None = Field(
        None, description="In place of rollouts, the samples of this folder in the run's `eval`, as 'kk-gen-test-*'."
    )
    bins: Count = Field(10, description="Bins of frequency in the figure.")


class LandscapeOptions(Section):
    """Keys of `rlvr analyze landscape`."""

    samples: Count = Field(1, description="Problems whose completions before and after the collapse are shown.")


@dataclass(frozen=True)
class AnalysisKind:
    """What an analysis looks at.

    Attributes:
        summary: one line for people.
        paper: whose question it is.
        options: the keys that it takes.
        runs: most runs that it takes; None for any number.
        policy: whether it needs a checkpoint, of which there must be one then.
    """

    summary: str
    paper: str
    options: type[Section]
    runs: int | None = 1
    policy: bool = True


ANALYSES: dict[str, AnalysisKind] = {
    "probability": AnalysisKind(
        "gradient norms, and what an update moves, by the tokens' probability", "AR-Lopti", ProbabilityOptions
    ),
    "ratio": AnalysisKind(
        "spread of the importance ratio, what is clipped, and who dominates the gradient", "ACPO", RatioOptions
    ),
    "directions": AnalysisKind("angles between the updates of groups of tokens", "ACPO", DirectionsOptions),
    "weights": AnalysisKind("weights of real tokens on grad pi, and their bias, by region", "DGPO", WeightsOptions),
    "conflicts": AnalysisKind(
        "tokens that right and wrong completions of a problem share", "GTPO", ConflictsOptions, policy=False
    ),
    "words": AnalysisKind(
        "how often kinds of words occur, against the reward", "AR-Lopti", WordsOptions, runs=None, policy=False
    ),
    "landscape": AnalysisKind(
        "length, entropy, gradient norm and accuracy over training", "landscape", LandscapeOptions, None, policy=False
    ),
}
