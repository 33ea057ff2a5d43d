"""Choose what samples completions: the local sampler where it can, else transformers' `generate`."""

from __future__ import annotations

from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.models.completions import Engine
from rlvr_cli.models.decoder import supports
from rlvr_cli.models.sampler import sample
from rlvr_cli.models.transformers_engine import generate_with_transformers


def choose_engine(name: str, model: Any) -> tuple[Engine, str]:
    """The sampling function for a model and a sentence that says why it was taken.

    name: "auto" (local where it computes the model exactly, else transformers), "local" or "transformers".
    Raises UserError when "local" is asked for a model it does not support.
    """
    if name == "transformers":
        return generate_with_transformers, "transformers' generate, as configured"
    reason = supports(model)
    if reason is None:
        return sample, "the local key-value-cache sampler"
    if name == "local":
        raise UserError(
            f"rollout.engine: local cannot run this model: {reason}. Use rollout.engine=auto or transformers."
        )
    return generate_with_transformers, f"transformers' generate, because {reason}"
