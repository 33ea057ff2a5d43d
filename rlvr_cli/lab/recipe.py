"""What a lab base is built from: model size, data and training phases."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field, model_validator

from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.section import FromList, Section

Share = Annotated[float, Field(ge=0, le=1)]


class ModelSize(Section):
    """Qwen3 architecture with tied embeddings, float32."""

    hidden: int = Field(96, gt=0)
    layers: int = Field(4, gt=0)
    heads: int = Field(4, gt=0)
    feed_forward: int = Field(256, gt=0)
    init_std: float = Field(0.05, gt=0)

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelSize:
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden={self.hidden} must be a multiple of 2 x heads={2 * self.heads}")
        return self


class Phase(Section):
    """One stretch of supervised training; the learning rate warms up, then falls by a cosine to `final_lr_ratio`."""

    name: str
    steps: int = Field(gt=0)
    lr: float = Field(gt=0)
    batch: int = Field(64, gt=0)
    warmup: int = Field(20, ge=0)
    final_lr_ratio: Share = 0.1


class Recipe(Section):
    """A whole build; what is particular to a lab is in its own recipe, whose defaults give the shipped base."""

    model: ModelSize = ModelSize()
    puzzles: int = Field(40_000, gt=0, description="distinct train-split puzzles that traces are written for")
    max_tokens: int = Field(160, gt=0, description="prompt and trace together; longer traces are drawn again")
    phases: Annotated[tuple[Phase, ...], FromList] = ()

    def fingerprint(self) -> str:
        """SHA-256 of the recipe as canonical JSON."""
        return text_digest(json.dumps(self.model_dump(mode="json"), sort_keys=True))
