"""What is allowed but biases a training: said by `rlvr plan` and when a training starts."""

from __future__ import annotations

from rlvr_cli.config.method import SFTConfig
from rlvr_cli.config.schema import Config


def cautions(config: Config) -> list[str]:
    """Sentences for a person; none for a configuration without such a setting."""
    rollout = config.rollout
    limits = [f"rollout.top_p={rollout.top_p:g}"] if rollout.top_p < 1 else []
    limits += [f"rollout.top_k={rollout.top_k}"] if rollout.top_k else []
    if isinstance(config.method, SFTConfig) or not limits:
        return []
    verb = "sample" if len(limits) > 1 else "samples"
    return [
        f"WARNING: {' and '.join(limits)} {verb} from the likeliest tokens alone, and the gradient takes the samples "
        "for those of the whole distribution, of which every probability and ratio is: it is biased. "
        "rollout.top_p=1 with rollout.top_k=0 has no bias."
    ]
