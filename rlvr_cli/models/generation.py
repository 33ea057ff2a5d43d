"""A model's generation config (generation_config.json), which is saved as it was read."""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig


class KeptGenerationConfig(GenerationConfig):
    """A generation config with values that nothing uses (a temperature without do_sample), saved with them.

    transformers warns of such values where a published file is loaded and saved again, but refuses to save them once
    anything was changed, and a trainer changes the stop and padding tokens.
    """

    def validate(self, strict: bool = False, user_set_attributes: set[str] | None = None) -> None:
        super().validate(strict=False, user_set_attributes=user_set_attributes)


def keep_generation_config(model: Any) -> None:
    """Let ``model`` be saved whatever its generation config holds, also after a trainer has changed its tokens."""
    config = getattr(model, "generation_config", None)
    if type(config) is GenerationConfig:
        config.__class__ = KeptGenerationConfig
