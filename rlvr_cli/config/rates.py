"""A learning rate that follows from the model's size: `optimizer.lr: {scale_from: {lr: 1e-6, parameters: 1.5e9}}`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
Parameters = Annotated[float, Field(ge=1.0, le=1e15)]


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
