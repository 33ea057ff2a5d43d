"""Which way of dividing the model is asked for, what the trainer's arguments need for it, and whether it was got."""

from __future__ import annotations

from typing import Any

from accelerate.utils import DistributedType

from rlvr_cli.config.launch import LaunchConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.launch import deepspeed_config
from rlvr_cli.launch.deepspeed_config import deepspeed_in_words, is_sharded, stage_of
from rlvr_cli.models.architecture import parameters_of
from rlvr_cli.training.sharding.base import Sharding
from rlvr_cli.training.sharding.fsdp import FullyShardedSharding
from rlvr_cli.training.value_head import ValueLayer

STEPPED_BY_THE_TRAINER = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def check_devices(launch: LaunchConfig) -> None:
    """Raise UserError where ``launch`` shards and accelerate has no device that it shards on.

    Call it once the processes have met. On CPUs accelerate would train an unsharded model and say nothing.
    """
    if not is_sharded(launch):
        return
    from accelerate import PartialState

    if PartialState().distributed_type in (DistributedType.NO, DistributedType.MULTI_CPU):
        raise UserError(
            f"{deepspeed_in_words(launch)} shards the model across GPUs, but this process has none. On CPUs leave it "
            "out: every process then holds the whole model, and the numbers are the same."
        )


def trainer_arguments(config: Config, model: Any, *, bf16: bool, values: bool) -> dict[str, Any]:
    """What transformers' arguments need to shard ``model``; nothing where every process holds it whole.

    Args:
        values: whether the model will get a value head.

    Raises UserError where DeepSpeed's configuration contradicts the run's.
    """
    if config.launch.deepspeed is not None:
        # DeepSpeed takes no other optimizer of ours, and offloading replaces this one by its own for the CPU.
        lr = config.optimizer.peak_lr(lambda: parameters_of(model))
        return {"deepspeed": deepspeed_config.filled(config, bf16=bf16, lr=lr), "optim": "adamw_torch"}
    if not config.launch.fsdp:
        return {}
    found = {type(module).__name__ for module in model.modules()}
    layers = sorted(found & set(getattr(model, "_no_split_modules", None) or ()))
    if not layers:
        raise UserError(
            f"launch.fsdp=true: {type(model).__name__} does not say which of its layers may be sharded. Use "
            "launch.deepspeed=zero3."
        )
    # The value head is called after the model's own forward pass, so its weights are gathered for it alone.
    wrapped = [*layers, ValueLayer.__name__] if values else layers
    return {
        "fsdp": True,
        "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": wrapped},
        # Fine-tuning on demonstrations accumulates as transformers does: else FSDP2 keeps the gradients of the whole
        # model, in float32, until a step's last pass.
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    }


def sharding_of(trainer: Any, config: Config) -> Sharding:
    """How ``trainer`` holds its model. Raises RunError where accelerate made something else of what was asked for."""
    accelerator = trainer.accelerator
    found = accelerator.distributed_type
    if config.launch.deepspeed is not None:
        from rlvr_cli.training.sharding.zero import ZeroSharding

        settings = deepspeed_config.deepspeed_settings(config.launch) or {}
        plugin = accelerator.state.deepspeed_plugin if found == DistributedType.DEEPSPEED else None
        stage = None if plugin is None else stage_of(plugin.deepspeed_config)
        if stage != stage_of(settings):
            got = "no DeepSpeed" if stage is None else f"ZeRO stage {stage}"
            raise _other(config, f"ZeRO stage {stage_of(settings)}", f"{got} ({found.value})")
        return ZeroSharding(trainer, stage)
    if config.launch.fsdp:
        if found != DistributedType.FSDP or not accelerator.is_fsdp2:
            raise _other(config, "FSDP2", found.value)
        return FullyShardedSharding(trainer)
    if found not in STEPPED_BY_THE_TRAINER:
        raise RunError(
            f"accelerate runs {found.value}, which was not requested: its environment "
            "variables (ACCELERATE_USE_..., FSDP_...) say so. Unset them, or set launch.deepspeed or launch.fsdp."
        )
    return Sharding(trainer)


def _other(config: Config, wanted: str, found: str) -> RunError:
    return RunError(
        f"{deepspeed_in_words(config.launch)} asks for {wanted}, and accelerate runs {found}: its environment "
        "variables (ACCELERATE_..., FSDP_...) say something else. Nothing was trained."
    )
