"""What every section of the configuration is built from: the strict base class and the shared types of values."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Text = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$")]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
NotNegative = Annotated[float, Field(ge=0.0)]
Scale = Annotated[float, Field(ge=0.0, le=100.0)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A group of keys. Strict: no text for a number, no unknown key, no infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
