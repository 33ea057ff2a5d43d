"""The sections `update` and `optimizer`: how a rollout batch becomes optimizer steps, and AdamW with its rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rlvr_cli.core.section import Count, CountOrZero, FromList, Probability, Section

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
Parameters = Annotated[float, Field(ge=1.0, le=1e15)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class UpdateConfig(Section):
    """Division of a rollout batch into optimizer steps."""

    mini_batches: Count = Field(
        1, description="Equal parts of a rollout batch, each with an optimizer step: the steps of one pass over it."
    )
    epochs: Count = Field(1, description="Passes over a rollout batch.")
    micro_batch: Count | None = Field(
        None,
        description="Completions in one forward pass if all are as long as can be; shorter ones share it with "
        "more. null = a process's share of the step's batch, or its largest divisor up to 16.",
    )
    micro_tokens: Count | None = Field(
        None,
        description="Tokens in one forward pass, prompts included (a longer row has a pass to itself; not for sft); "
        "null = the tokens of micro_batch of the longest completions with their prompts.",
    )
    max_grad_norm: Annotated[float, Field(gt=0.0)] = Field(
        1.0, description="The gradient is scaled down to this norm when it is longer."
    )
    dropout: bool = Field(
        False,
        description="Whether the model's own dropout is on in updates: the policy that is updated is then not quite "
        "the one that sampled. That of adapters is model.adapter.dropout.",
    )


class ScaleFrom(BaseModel):
    """A rate that was found good for a model of another size.

    Attributes:
        lr: that rate.
        parameters: that model's number of parameters.
        this_model: the number that stands for the model trained; None = its parameters, counted.
    """

    model_config = _STRICT

    lr: Annotated[float, Field(gt=0.0, le=1.0)]
    parameters: Parameters
    this_model: Parameters | None = None

    def rate(self, parameters: float) -> float:
        """lr sqrt(N0 / N) for a model of ``parameters`` = N (DGPO, arXiv:2603.14389, equation 45).

        The paper's own numbers, 4.63e-7 and 3.27e-7, follow from its models' names, 1.5, 7 and 14 billion, and not
        from their numbers of parameters (1.777, 7.616 and 14.770 billion); ``this_model`` gives such a name.
        """
        size = parameters if self.this_model is None else self.this_model
        return float(self.lr * (self.parameters / size) ** 0.5)


class ScaledRate(BaseModel):
    """The one key of a learning rate that is a rule and no number. One value for the rest of the configuration."""

    model_config = ConfigDict(
        **_STRICT, title="a mapping {scale_from: {lr: a number, parameters: a number, this_model: a number}}"
    )

    scale_from: ScaleFrom


class OptimizerConfig(Section):
    """AdamW and its learning-rate schedule."""

    lr: Annotated[float, Field(gt=0.0, le=1.0)] | ScaledRate = Field(
        1e-6,
        description="Peak learning rate; or from a model of another size: scale_from.lr x sqrt(scale_from.parameters / "
        "this model's), where this_model may stand for the last.",
    )
    betas: Annotated[tuple[Beta, Beta], FromList] = Field(
        (0.9, 0.95), description="Decay of AdamW's running mean and of its running square."
    )
    eps: Annotated[float, Field(gt=0.0, le=1.0)] = Field(1e-8, description="AdamW's epsilon.")
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = Field(0.0, description="AdamW's weight decay.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Learning rate after the warm-up."
    )
    warmup_rollouts: CountOrZero = Field(0, description="Rollouts over which the learning rate rises from 0.")
    final_lr_ratio: Probability = Field(
        0.1, description="Learning rate at the end as a share of lr (lr_schedule linear or cosine)."
    )

    def peak_lr(self, parameters: Callable[[], int]) -> float:
        """The peak learning rate; ``parameters``, the model's number of them, is called where a rule needs it."""
        if not isinstance(self.lr, ScaledRate):
            return self.lr
        named = self.lr.scale_from.this_model
        return self.lr.scale_from.rate(named if named is not None else parameters())
