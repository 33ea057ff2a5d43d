"""FSDP2 under a trainer: every process holds a part of each layer, of its gradient and its optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from rlvr_cli.training.sharding.base import Sharding, group_settings


def set_half_precision(args: Any) -> None:
    """FSDP2's policy for bfloat16, into the trainer's arguments where they ask for both: the layers compute in it.

    accelerate's own would also round what comes out of the model, which is log-probs, and sum gradients in bfloat16.
    """
    if args.fsdp_plugin_args is not None and args.bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        args.fsdp_plugin_args["mixed_precision_policy"] = policy


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
