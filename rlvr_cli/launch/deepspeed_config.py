"""The DeepSpeed presets and files of `launch.deepspeed`.

transformers fills in the run's settings where the configuration has "auto"; a file that sets them otherwise is reported
before anything starts. Imports no torch.
"""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Iterator
from typing import Any

from rlvr_cli.config.launch import LaunchConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.text import did_you_mean

AUTO = "auto"
_FROM_THE_RUN: dict[str, Any] = {
    "train_batch_size": AUTO,
    "train_micro_batch_size_per_gpu": AUTO,
    "gradient_accumulation_steps": AUTO,
    "gradient_clipping": AUTO,
    "bf16": {"enabled": AUTO},
}
# Otherwise gradients are accumulated in bfloat16, whose error grows with each pass.
_OF_PRESETS = {**_FROM_THE_RUN, "data_types": {"grad_accum_dtype": "fp32"}}
_STAGE_3 = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "reduce_bucket_size": AUTO,
    "stage3_prefetch_bucket_size": AUTO,
    "stage3_param_persistence_threshold": AUTO,
    "stage3_gather_16bit_weights_on_model_save": True,
}
_ON_THE_HOST = {"device": "cpu", "pin_memory": True}
# The same as files, to copy and change: `rlvr config recipes deepspeed`.
PRESETS: dict[str, dict[str, Any]] = {
    "zero2": {**_OF_PRESETS, "zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True}},
    "zero3": {**_OF_PRESETS, "zero_optimization": _STAGE_3},
    "zero3-offload": {
        **_OF_PRESETS,
        "zero_optimization": {**_STAGE_3, "offload_optimizer": _ON_THE_HOST, "offload_param": _ON_THE_HOST},
    },
}
# Further settings of the run, or unsupported ones.
_NOT_OF_A_FILE = (
    *("optimizer", "scheduler", "fp16", "amp", "bfloat16", "torch_autocast"),
    *("elasticity", "curriculum_learning", "data_efficiency", "progressive_layer_drop", "compression_training"),
    *("tensor_parallel", "sequence_parallel_size", "pipeline"),
)


def is_sharded(launch: LaunchConfig) -> bool:
    """Return whether the model is sharded over the processes."""
    return launch.deepspeed is not None


def deepspeed_settings(launch: LaunchConfig) -> dict[str, Any] | None:
    """Return DeepSpeed's configuration with "auto" for the run's settings; None without DeepSpeed.

    Raises UserError if the preset or file does not exist, or is not a JSON object.
    """
    name = launch.deepspeed
    if name is None:
        return None
    if name in PRESETS:
        return copy.deepcopy(PRESETS[name])
    try:
        read: Any = json.loads(local_path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"launch.deepspeed={name}: no such file, and no preset of that name ({', '.join(PRESETS)})."
            f"{did_you_mean(name, PRESETS)}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"launch.deepspeed={name}: not a DeepSpeed configuration in JSON: {error}") from None
    if not isinstance(read, dict):
        raise UserError(f"launch.deepspeed={name}: not a DeepSpeed configuration, which is a JSON object.")
    settings: dict[str, Any] = {**copy.deepcopy(_FROM_THE_RUN), **read}
    if stage_of(settings) == 3:
        # Checkpoints have unsharded weights.
        settings["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    return settings


def check_deepspeed(config: Config, *, here: bool = True) -> None:
    """Raise UserError for all settings of the DeepSpeed configuration that the run decides or does not support.

    Args:
        here: whether the training runs on this machine, which then needs DeepSpeed.
    """
    settings = deepspeed_settings(config.launch)
    if settings is None:
        return
    named = f"launch.deepspeed={config.launch.deepspeed}"
    if here and importlib.util.find_spec("deepspeed") is None:
        raise UserError(f"{named}: DeepSpeed is not installed (it is for Linux alone).")
    if problems := list(_problems(settings)):
        raise UserError([f"{named}: {problem}" for problem in problems])


def sums_in_float32(settings: dict[str, Any]) -> bool:
    """Return whether DeepSpeed accumulates gradients in float32 rather than in the format of the weights."""
    return _section(settings, "data_types").get("grad_accum_dtype") in ("fp32", "float", "float32", "torch.float32")


def stage_of(settings: dict[str, Any]) -> Any:
    """Return ZeRO's stage in DeepSpeed's configuration, by default 0."""
    return _section(settings, "zero_optimization").get("stage", 0)


def _problems(settings: dict[str, Any]) -> Iterator[str]:
    for key, auto in _FROM_THE_RUN.items():
        if settings[key] != auto:
            yield f"{key} is {json.dumps(settings[key])} there, and the run decides it. Write {json.dumps(auto)} there."
    for key in _NOT_OF_A_FILE:
        if key in settings and _section(settings, key).get("enabled") not in (False, AUTO):
            yield f"{key}: is decided or not supported by the run. Remove it there."
    if (stage := stage_of(settings)) not in (1, 2, 3):
        yield (
            f"zero_optimization.stage is {stage!r} there, which divides nothing among the processes. Set it to 2 or 3 "
            "there, or remove launch.deepspeed."
        )
    zero = _section(settings, "zero_optimization")
    if zero.get("zenflow"):
        yield "zero_optimization.zenflow makes steps that the run does not see. Remove it there."
    offload = _section(zero, "offload_optimizer")
    if zero.get("compute_grad_norm") is False:
        yield "zero_optimization.compute_grad_norm is false there, and the run clips by the norm. Remove it there."
    if offload.get("super_offload"):
        yield "zero_optimization.offload_optimizer.super_offload: no checkpoint can hold its state. Remove it there."
    if stage == 1 and sums_in_float32(settings) and offload.get("device") != "cpu":
        yield (
            "data_types.grad_accum_dtype with zero_optimization.stage 1: checkpoints cannot hold its state. Set the "
            "stage to 2 there."
        )
    for key in ("offload_optimizer", "offload_param"):
        device = _section(zero, key).get("device", "none")
        if device not in ("none", "cpu"):
            yield (
                f"zero_optimization.{key}.device is {device!r} there: checkpoints would lack what lies on it. Set it "
                'to "cpu" there.'
            )


def _section(settings: dict[str, Any], key: str) -> dict[str, Any]:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}
