"""What is allowed but biases a training: said by `rlvr plan` and when a training starts."""

from __future__ import annotations

from rlvr_cli.config.method import SFTConfig
from rlvr_cli.config.schema import Config


def cautions(config: Config) -> list[str]:
    """Sentences for a person; none for a configuration without such a setting."""
    if isinstance(config.method, SFTConfig) or config.rollout.top_p == 1.0:
        return []
    return [
        f"WARNING: rollout.top_p={config.rollout.top_p:g} samples from the likeliest tokens alone, and the gradient "
        "takes the samples for those of the whole distribution, of which every probability and ratio is: it is biased. "
        "rollout.top_p=1 has no bias."
    ]
