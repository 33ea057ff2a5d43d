"""The DeepSpeed presets and files of `launch.deepspeed`.

transformers fills in the run's settings where the configuration has "auto"; other values are refused before a start.
Does not import torch.
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
_RUN_SETTINGS: dict[str, Any] = {
    "train_batch_size": AUTO,
    "train_micro_batch_size_per_gpu": AUTO,
    "gradient_accumulation_steps": AUTO,
    "gradient_clipping": AUTO,
    "bf16": {"enabled": AUTO},
}
# DeepSpeed's default accumulates gradients in bfloat16, whose error grows with each pass.
_PRESET_SETTINGS = {**_RUN_SETTINGS, "data_types": {"grad_accum_dtype": "fp32"}}
_STAGE_3 = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "reduce_bucket_size": AUTO,
    "stage3_prefetch_bucket_size": AUTO,
    "stage3_param_persistence_threshold": AUTO,
    "stage3_gather_16bit_weights_on_model_save": True,
}
_CPU_OFFLOAD = {"device": "cpu", "pin_memory": True}
# As files to copy: `rlvr config recipes deepspeed`.
PRESETS: dict[str, dict[str, Any]] = {
    "zero2": {
        **_PRESET_SETTINGS,
        "zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True},
    },
    "zero3": {**_PRESET_SETTINGS, "zero_optimization": _STAGE_3},
    "zero3-offload": {
        **_PRESET_SETTINGS,
        "zero_optimization": {**_STAGE_3, "offload_optimizer": _CPU_OFFLOAD, "offload_param": _CPU_OFFLOAD},
    },
}
# Settings of the run, or unsupported ones.
_REFUSED_KEYS = (
    *("optimizer", "scheduler", "fp16", "amp", "bfloat16", "torch_autocast"),
    *("elasticity", "curriculum_learning", "data_efficiency", "progressive_layer_drop", "compression_training"),
    *("tensor_parallel", "sequence_parallel_size", "pipeline"),
)


def is_sharded(launch: LaunchConfig) -> bool:
    return launch.deepspeed is not None


def deepspeed_settings(launch: LaunchConfig) -> dict[str, Any] | None:
    """Return DeepSpeed's configuration with "auto" for the run's settings; None without. Raises UserError."""
    name = launch.deepspeed
    if name is None:
        return None
    if name in PRESETS:
        return copy.deepcopy(PRESETS[name])
    try:
        content: Any = json.loads(local_path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"launch.deepspeed={name}: no such file or preset ({', '.join(PRESETS)}).{did_you_mean(name, PRESETS)}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"launch.deepspeed={name}: not a DeepSpeed configuration in JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"launch.deepspeed={name}: not a DeepSpeed configuration: must be a JSON object.")
    settings: dict[str, Any] = {**copy.deepcopy(_RUN_SETTINGS), **content}
    if zero_stage(settings) == 3:
        # Checkpoints hold unsharded weights.
        settings["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    return settings


def check_deepspeed(config: Config, *, installed: bool = True) -> None:
    """Raise UserError for all settings of the DeepSpeed configuration that the run sets or does not support."""
    settings = deepspeed_settings(config.launch)
    if settings is None:
        return
    prefix = f"launch.deepspeed={config.launch.deepspeed}"
    if installed and importlib.util.find_spec("deepspeed") is None:
        raise UserError(f"{prefix}: DeepSpeed is not installed (Linux only).")
    if problems := list(_find_problems(settings)):
        raise UserError([f"{prefix}: {problem}" for problem in problems])


def accumulates_in_float32(settings: dict[str, Any]) -> bool:
    return _section(settings, "data_types").get("grad_accum_dtype") in ("fp32", "float", "float32", "torch.float32")


def zero_stage(settings: dict[str, Any]) -> Any:
    return _section(settings, "zero_optimization").get("stage", 0)


def _find_problems(settings: dict[str, Any]) -> Iterator[str]:
    for key, auto in _RUN_SETTINGS.items():
        if settings[key] != auto:
            yield f"{key} must be {json.dumps(auto)}, since the run sets it; got {json.dumps(settings[key])}."
    for key in _REFUSED_KEYS:
        if key in settings and _section(settings, key).get("enabled") not in (False, AUTO):
            yield f"{key}: is set by the run, or not supported. Remove it."
    if (stage := zero_stage(settings)) not in (1, 2, 3):
        yield (
            f"zero_optimization.stage must be 1, 2 or 3, to shard anything; got {stage!r}. Set it, or remove "
            "launch.deepspeed."
        )
    zero = _section(settings, "zero_optimization")
    if zero.get("zenflow"):
        yield "zero_optimization.zenflow makes steps that the run does not count. Remove it."
    offload = _section(zero, "offload_optimizer")
    if zero.get("compute_grad_norm") is False:
        yield "zero_optimization.compute_grad_norm must be true, since the run clips by the norm; got false. Remove it."
    if offload.get("super_offload"):
        yield "zero_optimization.offload_optimizer.super_offload: checkpoints cannot hold its state. Remove it."
    if stage == 1 and accumulates_in_float32(settings) and offload.get("device") != "cpu":
        yield (
            "data_types.grad_accum_dtype and zero_optimization.stage 1 cannot be combined: checkpoints cannot hold "
            "the state. Set the stage to 2."
        )
    for key in ("offload_optimizer", "offload_param"):
        device = _section(zero, key).get("device", "none")
        if device not in ("none", "cpu"):
            yield (
                f'zero_optimization.{key}.device must be "none" or "cpu", for complete checkpoints; got '
                f"{json.dumps(device)}."
            )


def _section(settings: dict[str, Any], key: str) -> dict[str, Any]:
    value = settings.get(key)
    return value if isinstance(value, dict) else {}
