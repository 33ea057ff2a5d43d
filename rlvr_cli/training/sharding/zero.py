"""DeepSpeed ZeRO under a trainer: whole parameters, optimizer state of one process, steps that can be refused.

What is relied on of DeepSpeed 0.19's insides: the optimizer's ``fp32_partitioned_groups_flat`` (stage 3) or
``single_partition_of_fp32_groups`` are this process's parts of the float32 weights, which the inner optimizer's state
belongs to, a part for each group of parameters, in the order of the groups (stage 3: ``sub_group_to_group_id``);
``_get_norm_groups`` (stage 3) or ``scaled_global_norm`` gives the gradient's norm before anything is changed, and a
norm that is not finite makes the step an overflow, which touches no weight; ``unscale_and_clip_grads`` clips a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from deepspeed.runtime.utils import combine_grad_norm_groups
from deepspeed.runtime.zero import GatheredParameters
from torch import Tensor
from trl.models.utils import add_hooks, remove_hooks

from rlvr_cli.training.sharding.base import Sharding, group_settings, restore_group_settings

MASTER = "master"


class ZeroSharding(Sharding):
    """DeepSpeed's engine holds the model: gradients and optimizer state divided, in stage 3 parameters too."""

    divided = True

    def __init__(self, trainer: Any, stage: int) -> None:
        super().__init__(trainer)
        self.stage, self.name = stage, f"ZeRO-{stage}"
        # accelerate takes DeepSpeed's number in any case, and warns where its own is another.
        trainer.accelerator.gradient_accumulation_steps = trainer.args.gradient_accumulation_steps

    def described(self) -> dict[str, Any]:
        return {"kind": self.name, "deepspeed": self.trainer.args.deepspeed}

    def begin(self) -> None:
        self.engine = self.trainer.model_wrapped
        self.zero = self.engine.optimizer
        head = getattr(self.trainer, "value_head", None)
        self.gate = _Gate(self.zero, self.stage, apart=None if head is None else len(self.zero.param_groups) - 1)
        # accelerate would make the step in the last micro-batch's backward pass, before anyone has seen the loss.
        self.trainer.accelerator.deepspeed_engine_wrapped.backward = self._backward

    def _backward(self, loss: Tensor, sync_gradients: bool = True, **kwargs: Any) -> None:
        self.engine.set_gradient_accumulation_boundary(is_boundary=sync_gradients)
        self.engine.backward(loss, **kwargs)

    def step_norm(self, loss: float) -> float | None:
        self.gate.refuse = not torch.tensor(loss).isfinite().item()
        self.engine.step()
        if self.zero.overflow:
            # transformers leaves out a step of the schedule for an overflow; without DeepSpeed there is none.
            self.zero.overflow = False
            return float("inf")
        return float(self.gate.norm)

    @contextmanager
    def whole(self) -> Iterator[None]:
        if self.stage < 3:
            yield
            return
        with GatheredParameters(list(self.trainer.model.parameters())):
            # Forward passes would divide each layer again.
            remove_hooks(self.engine)
            try:
                yield
            finally:
                add_hooks(self.engine)

    def gathered(self, tensors: Callable[[Any], dict[str, Tensor]]) -> dict[str, Tensor]:
        trained = [parameter for parameter in self.trainer.model.parameters() if parameter.requires_grad]
        with GatheredParameters(trained, enabled=self.stage == 3):
            return {name: value.cpu().clone() for name, value in tensors(self.trainer.model).items()}

    def _parts(self) -> list[Tensor]:
        tensors: list[Tensor] = (
            self.zero.fp32_partitioned_groups_flat if self.stage == 3 else self.zero.single_partition_of_fp32_groups
        )
        return tensors

    def optimizer_part(self) -> dict[str, Any]:
        inner = self.zero.optimizer
        entries: dict[int, dict[str, Any]] = {}
        for index, tensor in enumerate(self._parts()):
            entries[index] = dict(inner.state.get(tensor, {}))
            if self._rounded():
                # The model's own weights are rounded from these.
                entries[index][MASTER] = tensor.detach()
        return {"state": entries, "param_groups": group_settings(inner)}

    def restore_optimizer_part(self, state: dict[str, Any]) -> None:
        inner = self.zero.optimizer
        restore_group_settings(inner, state["param_groups"])
        tensors = self._parts()
        for index, entries in state["state"].items():
            own = tensors[index]
            master = entries.pop(MASTER, None)
            if master is not None:
                own.data.copy_(master)
            # DeepSpeed makes the state in the first step, and takes what is there.
            inner.state[own] = {
                name: value.to(own.device) if isinstance(value, Tensor) and value.dim() > 0 else value
                for name, value in entries.items()
            }

    def _rounded(self) -> bool:
        return any(parameter.dtype != torch.float32 for parameter in self.trainer.model.parameters())


class _Gate:
    """Between the norm of a step's gradient and the step: refuses it, and clips PPO's value head by itself.

    Args:
        apart: the group of parameters that is clipped by its own norm; None = there is none.

    Attributes:
        refuse: set before a step: make it an overflow.
        norm: of the last step's gradient, without the group ``apart``.
    """

    def __init__(self, zero: Any, stage: int, *, apart: int | None) -> None:
        self.zero, self.stage, self.apart = zero, stage, apart
        self.refuse = False
        self.norm: Any = float("inf")
        self._apart_norm: Any = None
        self._clip = zero.unscale_and_clip_grads
        zero.check_grad_overflow = True
        if stage == 3:
            self._norms = zero._get_norm_groups
            zero._get_norm_groups = self._norm_groups
        else:
            zero.scaled_global_norm = self._global_norm
        if apart is not None:
            zero.unscale_and_clip_grads = self._clip_by_part

    def _group_of(self, index: int) -> int:
        """The group of parameters that a part belongs to."""
        return int(self.zero.sub_group_to_group_id[index]) if self.stage == 3 else index

    def _seen(self, norms: list[Any]) -> list[Any]:
        rest = [norm for index, norm in enumerate(norms) if self._group_of(index) != self.apart]
        own = [norm for index, norm in enumerate(norms) if self._group_of(index) == self.apart]
        self.norm = combine_grad_norm_groups(rest)
        self._apart_norm = combine_grad_norm_groups(own) if own else None
        return [torch.full_like(self.norm, float("inf"))] if self.refuse else norms

    def _norm_groups(self) -> list[Any]:
        return self._seen(self._norms())

    def _global_norm(self, norm_type: int = 2) -> Any:
        zero = self.zero
        norms = [
            zero.complete_grad_norm_calculation_for_cpu_offload(zero.params_in_partition[index])
            if zero.cpu_offload
            else zero.get_grad_norm_direct(zero.averaged_gradients[index], zero.params_in_partition[index])
            for index in range(len(zero.bit16_groups))
        ]
        return combine_grad_norm_groups(self._seen(norms))

    def _clip_by_part(self, which: Any, total_norm: Any) -> None:
        if self.stage == 3:
            position = which
        else:
            groups = self.zero.single_partition_of_fp32_groups
            position = next(index for index, group in enumerate(groups) if group.grad is which[0])
        self._clip(which, self._apart_norm if self._group_of(position) == self.apart else self.norm)
