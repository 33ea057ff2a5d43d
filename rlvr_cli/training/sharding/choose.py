"""Choose how the model is divided, with the trainer's arguments for it, and check the result."""

from __future__ import annotations

import os
from typing import Any

from accelerate.utils import DistributedType

from rlvr_cli.config.launch import LaunchConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.launch import deepspeed_config
from rlvr_cli.launch.deepspeed_config import deepspeed_in_words, is_sharded, stage_of
from rlvr_cli.models.architecture import parameters_of
from rlvr_cli.training.sharding.base import Sharding

STEPPED_BY_THE_TRAINER = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def check_devices(launch: LaunchConfig) -> None:
    """Raise UserError where an outer launcher asks for FSDP, or ``launch`` shards and there is no GPU to shard on.

    Call it once the processes have met. On CPUs accelerate would train an unsharded model without a message.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("true", "1"):
        raise UserError(
            "the launcher asks for FSDP (ACCELERATE_USE_FSDP), which rlvr does not support. Use a configuration of "
            "accelerate without it, and shard with launch.deepspeed=zero3."
        )
    if not is_sharded(launch):
        return
    from accelerate import PartialState

    if PartialState().distributed_type in (DistributedType.NO, DistributedType.MULTI_CPU):
        raise UserError(
            f"{deepspeed_in_words(launch)} shards the model across GPUs, but this process has none. On CPUs leave it "
            "out: every process then holds the whole model, and the numbers are the same."
        )


def trainer_arguments(config: Config, model: Any, *, bf16: bool) -> dict[str, Any]:
    """Return what transformers' arguments need to shard ``model``; nothing where every process holds it whole.

    Raises UserError where DeepSpeed's configuration contradicts the run's.
    """
    if config.launch.deepspeed is not None:
        # DeepSpeed takes no other optimizer of ours, and offloading replaces this one by its own for the CPU.
        lr = config.optimizer.peak_lr(lambda: parameters_of(model))
        return {"deepspeed": deepspeed_config.filled(config, bf16=bf16, lr=lr), "optim": "adamw_torch"}
    return {}


def sharding_of(trainer: Any, config: Config) -> Sharding:
    """Return how ``trainer`` holds its model. Raises RunError where accelerate made something else of the request."""
    accelerator = trainer.accelerator
    distributed_type = accelerator.distributed_type
    if config.launch.deepspeed is not None:
        from rlvr_cli.training.sharding.zero import ZeroSharding

        settings = deepspeed_config.deepspeed_settings(config.launch) or {}
        plugin = accelerator.state.deepspeed_plugin if distributed_type == DistributedType.DEEPSPEED else None
        stage = None if plugin is None else stage_of(plugin.deepspeed_config)
        if stage != stage_of(settings):
            got = "no DeepSpeed" if stage is None else f"ZeRO stage {stage}"
            raise _other(config, f"ZeRO stage {stage_of(settings)}", f"{got} ({distributed_type.value})")
        return ZeroSharding(trainer, stage)
    if distributed_type not in STEPPED_BY_THE_TRAINER:
        raise RunError(
            f"accelerate runs {distributed_type.value}, which was not requested: its environment "
            "variables (ACCELERATE_USE_...) say so. Unset them, or set launch.deepspeed."
        )
    return Sharding(trainer)


def _other(config: Config, wanted: str, running: str) -> RunError:
    return RunError(
        f"{deepspeed_in_words(config.launch)} asks for {wanted}, and accelerate runs {running}: its environment "
        "variables (ACCELERATE_...) say something else. Nothing was trained."
    )
