"""DeepSpeed ZeRO in a run: gather weights for sampling and saving, save the optimizer's shards.

accelerate creates DeepSpeed's engine from transformers' arguments. In the last backward pass of a step the engine clips
the gradients (summed in float32 if so configured) and runs the step, or skips it if the gradient is not finite
(``check_grad_overflow``).

Undocumented attributes of DeepSpeed 0.19's optimizer: ``fp32_partitioned_groups_flat`` (stage 3) or
``single_partition_of_fp32_groups`` are this process's shards of the float32 weights, the parameters of the inner
optimizer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlvr_cli.config.launch import LaunchConfig
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.launch.deepspeed_config import deepspeed_settings, is_sharded

MASTER = "master"


def check_devices(launch: LaunchConfig) -> None:
    """Raise UserError for FSDP of an outer launcher, sharding without GPUs, or an invalid DeepSpeed configuration.

    Call it after the processes have joined their group. On CPUs accelerate would silently train an unsharded model.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("true", "1"):
        raise UserError(
            "the launcher requests FSDP (ACCELERATE_USE_FSDP), which rlvr does not support. Disable it in accelerate's "
            "configuration, and shard with launch.deepspeed=zero3."
        )
    if not is_sharded(launch):
        return
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    if PartialState().distributed_type in (DistributedType.NO, DistributedType.MULTI_CPU):
        raise UserError(
            f"launch.deepspeed={launch.deepspeed} shards the model across GPUs, but this process has none. Remove it: "
            "on CPUs every process holds the whole model, and the numbers are the same."
        )
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    try:
        DeepSpeedZeroConfig(**(deepspeed_settings(launch) or {})["zero_optimization"])
    except (ValueError, AssertionError) as error:
        raise UserError(f"launch.deepspeed={launch.deepspeed}: {' '.join(str(error).split())}") from error


def propagate_nonfinite(loss: Tensor) -> Tensor:
    """Return ``loss``, whose gradient is non-finite if it is: DeepSpeed checks only gradients."""
    return loss * (1 + 0 * loss.detach())


class Zero:
    """DeepSpeed's engine under a trainer: gradients and optimizer state are sharded, in stage 3 also the parameters.

    Raises RunError for an unsupported DeepSpeed optimizer.
    """

    def __init__(self, trainer: Any) -> None:
        from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
        from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

        self.trainer, self.engine = trainer, trainer.model_wrapped
        self.optimizer = self.engine.optimizer
        self.shards_parameters = type(self.optimizer) is DeepSpeedZeroOptimizer_Stage3
        if not self.shards_parameters and type(self.optimizer) is not DeepSpeedZeroOptimizer:
            raise RunError(
                f"launch.deepspeed: this configuration uses {type(self.optimizer).__name__}, whose state cannot be "
                "saved. Set launch.deepspeed=zero2 or zero3."
            )

    @contextmanager
    def gather_parameters(self) -> Iterator[None]:
        """Gather the parameters for reading inside the context. Entering and leaving are collective operations."""
        if not self.shards_parameters:
            yield
            return
        from trl.models.utils import add_hooks, remove_hooks

        with self._gather(list(self.trainer.model.parameters())):
            # Forward passes would reshard each layer.
            remove_hooks(self.engine)
            try:
                yield
            finally:
                add_hooks(self.engine)

    def gather_state_dict(self) -> dict[str, Tensor]:
        """Return the model's whole weights on rank 0, {} on the others. Called in every process."""
        weights: dict[str, Tensor] = self.trainer.accelerator.get_state_dict(self.engine) or {}
        # Tied weights are copies here.
        ties = getattr(self.trainer.model, "all_tied_weights_keys", None) or {}
        return {name: value for name, value in weights.items() if not (name in ties and ties[name] in weights)}

    def gather_trained(self, tensors: Callable[[Any], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return ``tensors(model)``, whole, computed with the trained parameters gathered. Called in every process."""
        with self._gather([parameter for parameter in self.trainer.model.parameters() if parameter.requires_grad]):
            return {name: value.cpu().clone() for name, value in tensors(self.trainer.model).items()}

    def _gather(self, parameters: list[Any]) -> Any:
        import deepspeed

        return deepspeed.zero.GatheredParameters(parameters, enabled=self.shards_parameters)

    def _shards(self) -> list[Tensor]:
        name = "fp32_partitioned_groups_flat" if self.shards_parameters else "single_partition_of_fp32_groups"
        shards: list[Tensor] = getattr(self.optimizer, name)
        return shards

    def optimizer_state(self) -> dict[str, Any]:
        """Return this process's shard of the optimizer's state, for ``checkpoint_state.save_optimizer``."""
        inner = self.optimizer.optimizer
        # bfloat16 parameters are rounded from the float32 master weights.
        has_master = any(parameter.dtype != torch.float32 for parameter in self.trainer.model.parameters())
        return {
            "state": {
                index: {**inner.state.get(shard, {}), **({MASTER: shard.detach()} if has_master else {})}
                for index, shard in enumerate(self._shards())
            },
            "param_groups": [
                {key: value for key, value in group.items() if key != "params"} for group in inner.param_groups
            ],
        }

    def load_optimizer_state(self, saved: dict[str, Any]) -> None:
        """Restore :meth:`optimizer_state` before the first step."""
        inner, shards = self.optimizer.optimizer, self._shards()
        for group, settings in zip(inner.param_groups, saved["param_groups"], strict=True):
            group.update(settings)
        for index, entries in saved["state"].items():
            shard = shards[index]
            master = entries.pop(MASTER, None)
            if master is not None:
                shard.data.copy_(master)
            inner.state[shard] = {
                name: value.to(shard.device) if isinstance(value, Tensor) and value.dim() > 0 else value
                for name, value in entries.items()
            }
