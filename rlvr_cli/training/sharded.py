"""A model that is divided among the processes: how it is asked for, made whole for reading, and saved.

Three ways: every process holds the whole model (one process, or DDP), DeepSpeed ZeRO, FSDP2. A trainer asks its
:class:`Sharding` wherever that makes a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from transformers.trainer_utils import load_sharded_checkpoint
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from rlvr_cli.config.launch_keys import LaunchConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.launch import deepspeed_config
from rlvr_cli.launch.deepspeed_config import described, is_sharded, stage_of
from rlvr_cli.models.architecture import parameters_of
from rlvr_cli.training import state
from rlvr_cli.training.value_head import NAME as VALUE_HEAD
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
            f"{described(launch)} divides the model among GPUs, and this process sees none. On CPUs leave it out: "
            "every process then holds the whole model, and the numbers are the same."
        )


def trainer_arguments(config: Config, model: Any, *, bf16: bool, values: bool) -> dict[str, Any]:
    """What transformers' arguments need to shard ``model``; nothing where every process holds it whole.

    Args:
        values: whether the model will get a value head.

    Raises UserError where DeepSpeed's configuration contradicts the run's.
    """
    if config.launch.deepspeed is not None:
        # DeepSpeed knows no other optimizer of ours, and offloading replaces this one by its own for the CPU.
        lr = config.optimizer.peak_lr(lambda: parameters_of(model))
        return {"deepspeed": deepspeed_config.filled(config, bf16=bf16, lr=lr), "optim": "adamw_torch"}
    if not config.launch.fsdp:
        return {}
    found = {type(module).__name__ for module in model.modules()}
    layers = sorted(found & set(getattr(model, "_no_split_modules", None) or ()))
    if not layers:
        raise UserError(
            f"launch.fsdp=true: {type(model).__name__} does not say which of its layers may be divided among the "
            "processes. Use launch.deepspeed=zero3."
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


def half_precision() -> MixedPrecisionPolicy:
    """FSDP2's policy for bfloat16: the layers compute in it.

    accelerate's own would also round what comes out of the model, which is log-probs, and sum gradients in bfloat16.
    """
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Sharding:
    """Every process holds the whole model and its optimizer's state.

    Attributes:
        divided: whether every process has a part of the training's state that the others have not.
    """

    name = "whole"
    divided = False

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def begin(self) -> None:
        """The trainer has wrapped its model and made its optimizer."""

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, the parameters of the trainer's model are whole, for reading, and forward passes wait for nobody.

        Every process enters and leaves it; in between they are independent.
        """
        yield

    def weights(self) -> dict[str, Tensor]:
        """The whole model's weights on rank 0; on the others possibly nothing. Called in every process."""
        trainer = self.trainer
        weights: dict[str, Tensor] = trainer.accelerator.get_state_dict(trainer.model_wrapped) or {}
        return without_ties(trainer.model, weights) if self.divided else weights

    def gathered(self, tensors: Callable[[Any], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The whole of some trained tensors, which ``tensors`` reads off the model. Called in every process."""
        return tensors(self.trainer.model)

    def optimizer_part(self) -> dict[str, Any]:
        """What this process holds of the optimizer's state, as ``state.save_optimizer`` takes it."""
        part: dict[str, Any] = self.trainer.optimizer.state_dict()
        return part

    def restore_optimizer_part(self, part: dict[str, Any]) -> None:
        """The inverse of :meth:`optimizer_part`, on a trainer that has made no step."""
        self.trainer.optimizer.load_state_dict(part)

    def described(self) -> dict[str, Any]:
        """What must be the same for a checkpoint's optimizer state to fit."""
        return {"kind": self.name}

    def check_same(self, checkpoint: Path, before: dict[str, Any] | None) -> None:
        """Raise RunError where ``checkpoint`` was written by a training that was divided in another way."""
        if before is not None and before != self.described():
            what = "with another DeepSpeed configuration"
            if before.get("kind") != self.name:
                what = f"under {before.get('kind')}, and this is {self.name}"
            raise RunError(f"{checkpoint}: was written {what}. Continue with launch.deepspeed's file as it was.")

    def step_norm(self, loss: float) -> float | None:
        """Make the optimizer step where the trainer does not, and return the gradient's norm; None = not made.

        A step whose gradient or ``loss`` is not finite leaves the weights as they were and returns infinity.
        """
        return None


class FullyShardedSharding(Sharding):
    """FSDP2: parameters, gradients and optimizer state are DTensors."""

    name = "FSDP2"
    divided = True

    def begin(self) -> None:
        head = getattr(self.trainer, "value_head", None)
        if head is not None:
            # Its regression would stop at bfloat16's rounding. accelerate takes but one policy; FSDP2 reads that of
            # each part in the first forward pass.
            divided = head.layer._get_fsdp_state()
            divided._mp_policy = MixedPrecisionPolicy()
            for group in divided._fsdp_param_groups:
                group.mp_policy = divided._mp_policy

    @contextmanager
    def whole(self) -> Iterator[None]:
        parts: list[Any] = [module for module in self.trainer.model.modules() if isinstance(module, FSDPModule)]
        groups = [group for part in parts for group in part._get_fsdp_state()._fsdp_param_groups]
        # What each group does after a forward pass differs, and only its setting can tell.
        before = [group.post_forward_mesh_info for group in groups]
        classes = [type(part) for part in parts]
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
        for part in parts:
            part.unshard()
        for part, own in zip(parts, classes, strict=True):
            part.__class__ = own.__bases__[1]  # a plain layer, for who reads it
        hooked = [group for group in groups if _without_state_dict_hooks(group)]
        # accelerate has it ask FSDP first, which a plain layer does not know.
        generates = [(part, vars(part).pop("generate")) for part in parts if "generate" in vars(part)]
        try:
            yield
        finally:
            for part, method in generates:
                part.generate = method
            for group in hooked:
                group._register_state_dict_hooks()
            for part, own in zip(parts, classes, strict=True):
                part.__class__ = own
            for group, setting in zip(groups, before, strict=True):
                group.post_forward_mesh_info = setting
            for part in parts:
                part.reshard()

    def gathered(self, tensors: Callable[[Any], dict[str, Tensor]]) -> dict[str, Tensor]:
        return {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).cpu()
            for name, value in tensors(self.trainer.model).items()
        }

    def _optimizer(self) -> Any:
        optimizer = self.trainer.optimizer
        while hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer
        return optimizer

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self._optimizer().param_groups for parameter in group["params"]]

    def optimizer_part(self) -> dict[str, Any]:
        optimizer = self._optimizer()
        return {
            "state": {
                index: {name: _own(value) for name, value in optimizer.state.get(parameter, {}).items()}
                for index, parameter in enumerate(self._parameters())
            },
            "param_groups": group_settings(optimizer),
        }

    def restore_optimizer_part(self, part: dict[str, Any]) -> None:
        optimizer, parameters = self._optimizer(), self._parameters()
        for index, entries in part["state"].items():
            for name, value in entries.items():
                if isinstance(value, Tensor) and value.dim() > 0:
                    entries[name] = torch.zeros_like(parameters[index].detach())
                    _own(entries[name]).copy_(value)
        # By the optimizer's own way in: it knows where its counters of steps belong (fused on GPUs: on them).
        numbers = optimizer.state_dict()["param_groups"]
        groups = [{**own, **saved} for own, saved in zip(numbers, part["param_groups"], strict=True)]
        optimizer.load_state_dict({"state": part["state"], "param_groups": groups})


def _without_state_dict_hooks(group: Any) -> bool:
    """Take away what divides the parameters again when ``state_dict()`` is asked for; whether there was anything."""
    hooks = (group._module_to_pre_save_state_dict_hook_handle, group._module_to_pre_load_state_dict_hook_handle)
    there = any(hooks)
    for handles in hooks:
        for handle in handles.values():
            handle.remove()
        handles.clear()
    return there


def _own(value: Any) -> Any:
    """This process's part of ``value``."""
    return value.to_local() if isinstance(value, DTensor) else value


def group_settings(optimizer: Any) -> list[dict[str, Any]]:
    """The groups' settings (learning rate, ...), without the parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def restore_group_settings(optimizer: Any, groups: list[dict[str, Any]]) -> None:
    """The inverse of :func:`group_settings`."""
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group.update(saved)


def without_ties(model: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """``weights`` with every tied tensor once, as a model that is not divided is saved."""
    ties = getattr(model, "all_tied_weights_keys", None) or {}
    return {name: value for name, value in weights.items() if not (name in ties and ties[name] in weights)}


def sharding_of(trainer: Any, config: Config) -> Sharding:
    """How ``trainer`` holds its model. Raises RunError where accelerate made something else of what was asked for."""
    accelerator = trainer.accelerator
    found = accelerator.distributed_type
    if config.launch.deepspeed is not None:
        from rlvr_cli.training.sharded_zero import ZeroSharding

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
            f"accelerate runs {found.value}, and nothing of the kind was asked for: its environment variables "
            "(ACCELERATE_USE_..., FSDP_...) say so. Unset them, or set launch.deepspeed or launch.fsdp."
        )
    return Sharding(trainer)


def _other(config: Config, wanted: str, found: str) -> RunError:
    return RunError(
        f"{described(config.launch)} asks for {wanted}, and accelerate runs {found}: its environment variables "
        "(ACCELERATE_..., FSDP_...) say something else. Nothing was trained."
    )


def load_weights(model: nn.Module, folder: Path) -> None:
    """Load a checkpoint's weights into a model that is whole. Raises RunError where they are another model's."""
    if (folder / SAFE_WEIGHTS_INDEX_NAME).exists():
        result = load_sharded_checkpoint(model, str(folder), strict=False, prefer_safe=True)
    else:
        result = model.load_state_dict(load_file(folder / SAFE_WEIGHTS_NAME), strict=False)
    ties = set(getattr(model, "all_tied_weights_keys", None) or {})
    # PPO's value head lies in a file of its own.
    missing = [key for key in result.missing_keys if key not in ties and not key.startswith(f"{VALUE_HEAD}.")]
    if missing or result.unexpected_keys:
        named = ", ".join([*missing, *result.unexpected_keys][:3])
        raise RunError(f"{folder}: its weights are not those of this model ({named}).")


def optimizer_name(rank: int) -> str:
    """What a process's part of the optimizer's state is called in a checkpoint, without ending."""
    return f"{state.OPTIMIZER}-{rank}"
