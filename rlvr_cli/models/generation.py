"""Save a model's generation_config.json as it was read."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig


class LenientGenerationConfig(GenerationConfig):
    """A generation config that can be saved with unused values (a temperature without do_sample).

    transformers only warns of them in an unchanged config, but refuses to save a changed one, and a trainer changes the
    stop and padding tokens.
    """

    def validate(self, strict: bool = False, user_set_attributes: set[str] | None = None) -> None:
        super().validate(strict=False, user_set_attributes=user_set_attributes)


def keep_generation_config(model: Any) -> None:
    """Let ``model`` save any generation config, also after a trainer has changed its tokens."""
    config = getattr(model, "generation_config", None)
    if type(config) is GenerationConfig:
        config.__class__ = LenientGenerationConfig
