"""Takes records, learning rates, health and checkpoints out of the hands of transformers' Trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer

from rlvr_cli.training.sharding.base import Sharding
from rlvr_cli.training.sharding.fsdp import half_precision


class ManagedTrainer(Trainer, ABC):
    """Mixed in before a trainer of TRL's: it makes the steps, the subclass keeps the run. TRL writes nothing."""

    @abstractmethod
    def accept_gradient(self, loss: float, grad_norm: float) -> bool:
        """Whether the optimizer may use the gradient it is about to use."""

    @abstractmethod
    def record_step(self, step: int, grad_norm: float, learning_rate: float) -> None:
        """An optimizer step was made; ``step`` counts from 1."""

    @abstractmethod
    def learning_rate_factor(self, step: int) -> float:
        """Learning rate of optimizer step ``step`` (from 0) as a share of the peak."""

    @abstractmethod
    def save_checkpoint(self, step: int) -> None:
        """Write a checkpoint; called in every process."""

    @abstractmethod
    def load_checkpoint(self, path: Path) -> None:
        """Restore optimizer, schedule and position; the weights are loaded already."""

    @abstractmethod
    def load_random_states(self, path: Path) -> None:
        """Restore the random generators of this process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._loss_sum = torch.zeros((), dtype=torch.float64)
        self.sharding = Sharding(self)
        super().__init__(*args, **kwargs)

    def create_accelerator_and_postprocess(self) -> None:
        if self.args.fsdp_plugin_args is not None and self.args.bf16:
            self.args.fsdp_plugin_args["mixed_precision_policy"] = half_precision()
        super().create_accelerator_and_postprocess()
        if self.accelerator.ddp_handler is not None:
            # Gradients lie in the buckets that are sent, which would else be as large again.
            self.accelerator.ddp_handler.gradient_as_bucket_view = True

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        self._loss_sum = self._loss_sum + loss.detach().double()
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> float:
        # Called once a step, after accumulation and clipping and before the optimizer: the last moment at which a
        # NaN can be kept out of the weights.
        loss = float(self.accelerator.reduce(self._loss_sum, reduction="mean"))
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=self.args.device)
        made = self.sharding.step_norm(loss)
        norm = _number(super()._get_grad_norm(model, grad_norm)) if made is None else made
        if not self.accept_gradient(loss, norm) and made is None:
            # Not zeros: an optimizer passes over a parameter without a gradient, momentum and decay included.
            for parameter in model.parameters():
                parameter.grad = None
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # The closing summary of transformers has no gradient norm, and nothing that we have not written already.
        if "grad_norm" in logs:
            self.record_step(self.state.global_step, logs["grad_norm"], logs["learning_rate"])

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:  # type: ignore[has-type]
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self.learning_rate_factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.save_checkpoint(self.state.global_step)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self.load_checkpoint(Path(checkpoint))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        # transformers calls this last, after it has moved the data loader to the position of the checkpoint.
        if checkpoint is not None:
            self.load_random_states(Path(checkpoint))


def _number(norm: Any) -> float:
    """A gradient's norm over all processes."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
