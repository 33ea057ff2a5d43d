"""The section `optimizer`: AdamW, and the learning rate of each optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from rlvr_cli.config.batch import BatchArithmetic
from rlvr_cli.core.section import CountOrZero, FromList, Probability, Section

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
Parameters = Annotated[float, Field(ge=1.0, le=1e15)]
Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class ScaleFrom(BaseModel):
    """A learning rate tuned for a model of another size.

    Attributes:
        lr: the rate.
        parameters: parameter count of that model.
        this_model: nominal parameter count of the trained model; None = counted.
    """

    model_config = _STRICT

    lr: Annotated[float, Field(gt=0.0, le=1.0)]
    parameters: Parameters
    this_model: Parameters | None = None

    def rate(self, parameters: Callable[[], float]) -> float:
        """Return lr sqrt(N0 / N) for a model of ``parameters()`` = N (DGPO, arXiv:2603.14389, equation 45).

        The paper's numbers, 4.63e-7 and 3.27e-7, follow from the nominal sizes, 1.5, 7 and 14 billion, not from the
        numbers of parameters (1.777, 7.616 and 14.770 billion); ``this_model`` sets a nominal size.
        """
        size = parameters() if self.this_model is None else self.this_model
        return float(self.lr * (self.parameters / size) ** 0.5)


class ScaledRate(BaseModel):
    """A learning rate given by a rule."""

    model_config = ConfigDict(
        **_STRICT, title="a mapping {scale_from: {lr: a number, parameters: a number, this_model: a number}}"
    )

    scale_from: ScaleFrom


class OptimizerConfig(Section):
    """AdamW and its learning-rate schedule."""

    lr: Annotated[float, Field(gt=0.0, le=1.0)] | ScaledRate = Field(
        1e-6,
        description="Peak learning rate; or {scale_from: ...}, scaled from a model of another size: scale_from.lr x "
        "sqrt(scale_from.parameters / this model's parameters), which scale_from.this_model overrides.",
    )
    betas: Annotated[tuple[Beta, Beta], FromList] = Field(
        (0.9, 0.95), description="AdamW's betas: decay rates of the gradient's running mean and running square."
    )
    eps: Annotated[float, Field(gt=0.0, le=1.0)] = Field(1e-8, description="AdamW's epsilon.")
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = Field(0.0, description="AdamW's weight decay.")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Learning-rate schedule after the warm-up."
    )
    warmup_rollouts: CountOrZero = Field(
        0, description="Rollouts of linear learning-rate warm-up from 0; 0 = no warm-up."
    )
    final_lr_ratio: Probability = Field(
        0.1, description="Final learning rate as a fraction of lr (lr_schedule linear or cosine)."
    )


@dataclass(frozen=True)
class LearningRate:
    """The learning rate of each optimizer step of a training: ``peak * factor(step)``.

    From ``Config.learning_rate``; a value head multiplies it by ``method.critic.lr_ratio``.
    """

    optimizer: OptimizerConfig
    batch: BatchArithmetic

    def peak(self, parameters: Callable[[], int]) -> float:
        """Return the peak rate; ``parameters`` returns the model's parameter count, needed for a rule."""
        lr = self.optimizer.lr
        return lr.scale_from.rate(parameters) if isinstance(lr, ScaledRate) else lr

    def factor(self, step: int) -> float:
        """Return the rate of optimizer step ``step`` (from 0) relative to the peak.

        Linear from 0 over ``warmup_rollouts``, then constant, or with linear or cosine decay to ``final_lr_ratio`` one
        step after the last.
        """
        optimizer, batch = self.optimizer, self.batch
        warmup = optimizer.warmup_rollouts * batch.steps_per_rollout
        if step < warmup:
            return (step + 1) / warmup
        if optimizer.lr_schedule == "constant":
            return 1.0
        progress = min(1.0, (step - warmup) / max(1, batch.steps_total - warmup))
        linear = optimizer.lr_schedule == "linear"
        falling = 1.0 - progress if linear else 0.5 * (1.0 + math.cos(math.pi * progress))
        return optimizer.final_lr_ratio + (1.0 - optimizer.final_lr_ratio) * falling
