"""What is allowed but spoils a training: said by `rlvr plan` and when a training starts."""

from __future__ import annotations

from rlvr_cli.config.schema import Config
from rlvr_cli.methods.sft import SFT


def cautions(config: Config) -> list[str]:
    """Sentences for a person; none for a configuration without such a setting."""
    return [*_lost_steps(config), *_biased_samples(config)]


def _lost_steps(config: Config) -> list[str]:
    """DeepSpeed keeps a float32 copy of the weights, and adapters are float32 in any case."""
    if config.model.dtype != "bfloat16" or config.model.adapter.kind != "none" or config.launch.deepspeed is not None:
        return []
    return [
        "WARNING: model.dtype=bfloat16 trains weights that are bfloat16 themselves: near 0.01 its numbers are 0.00006 "
        "apart, and an optimizer step of the usual learning rates (1e-6) is lost in rounding. model.dtype=auto keeps "
        "float32 weights, and computes in bfloat16 on a GPU."
    ]


def _biased_samples(config: Config) -> list[str]:
    rollout = config.rollout
    limits = [f"rollout.top_p={rollout.top_p:g}"] if rollout.top_p < 1 else []
    limits += [f"rollout.top_k={rollout.top_k}"] if rollout.top_k else []
    if isinstance(config.method, SFT) or not limits:
        return []
    verb = "sample" if len(limits) > 1 else "samples"
    return [
        f"WARNING: {' and '.join(limits)} {verb} from the likeliest tokens alone, and the gradient takes the samples "
        "for those of the whole distribution, of which every probability and ratio is: it is biased. "
        "rollout.top_p=1 with rollout.top_k=0 has no bias."
    ]
