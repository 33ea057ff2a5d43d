"""The base of a run's trainers: TRL's arguments, and the overridden hooks of transformers' Trainer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer

from rlvr_cli.launch.deepspeed_config import deepspeed_settings, is_sharded
from rlvr_cli.models.adapter import AdapterFolder
from rlvr_cli.models.architecture import count_parameters
from rlvr_cli.models.gpu import has_bfloat16
from rlvr_cli.tracking.tracking import RunTracking
from rlvr_cli.training.checkpointer import Checkpointer
from rlvr_cli.training.held_out import make_evaluate
from rlvr_cli.training.packing import TensorRows
from rlvr_cli.training.past_weights import PastWeights
from rlvr_cli.training.prepare import RunParts
from rlvr_cli.training.recorder import Recorder, Skips, StopAtStepEnd
from rlvr_cli.training.zero import Zero


def run_arguments(run_parts: RunParts) -> dict[str, Any]:
    """Return the arguments of any TRL trainer."""
    config, run = run_parts.config, run_parts.run
    gpu, sharded = torch.cuda.is_available(), is_sharded(config.launch)
    checkpointing = config.model.gradient_checkpointing
    return {
        "deepspeed": deepspeed_settings(config.launch),
        "output_dir": str(run.path),
        "use_cpu": not gpu and not sharded,
        "bf16": has_bfloat16(),
        "gradient_checkpointing": gpu if checkpointing == "auto" else checkpointing == "on",
        # Every loss uses every weight, and the search for unused ones walks the graph in each micro-batch.
        "ddp_find_unused_parameters": False,
        "seed": config.run.seed,
        "max_steps": config.batch.steps_total,
        "save_steps": config.checkpoint.every,  # only for trainer_state.json
        "learning_rate": config.learning_rate.peak(lambda: count_parameters(run_parts.prepared.model)),
        "adam_beta1": config.optimizer.betas[0],
        "adam_beta2": config.optimizer.betas[1],
        "adam_epsilon": config.optimizer.eps,
        "weight_decay": config.optimizer.weight_decay,
        "max_grad_norm": config.update.max_grad_norm,
        # DeepSpeed accepts no other, and replaces it by a CPU version for offloading.
        **({"optim": "adamw_torch"} if sharded else {}),
    }


class RunTrainer(Trainer):
    """Mixin that maintains a run's folder, before the trainer with the gradient, whose ``__init__`` calls `begin_run`.

    Records, checkpoints and stopping are callbacks. These overrides have no callback: ``_get_grad_norm``, called once
    per step between clipping and the optimizer, where ``_tr_loss`` is the sum of the losses since its last reset;
    ``create_scheduler``; ``_load_from_checkpoint``, called before the model is wrapped; ``_prepare_for_training``,
    which wraps it and would load DeepSpeed's checkpoints.

    Attributes:
        executed: the counter of executed terms of the method.
        zero: DeepSpeed's engine once created; None if every process holds the whole model.
        past_weights: earlier weights to sample with; None = the current ones.
    """

    _tr_loss: torch.Tensor
    past_weights: PastWeights | None = None

    def begin_run(self, run_parts: RunParts) -> None:
        """Add the run's records, checkpoints and signal handling to the new trainer."""
        config, run, base = run_parts.config, run_parts.run, run_parts.prepared.base
        self.config, self.batch, self.run = config, config.batch, run
        self.reporter, self.executed = run_parts.reporter, run_parts.executed
        self.skips = Skips(config.train, run_parts.reporter.show)
        if self.accelerator.ddp_handler is not None:
            # Gradients are views of the communication buckets, which saves a copy.
            self.accelerator.ddp_handler.gradient_as_bucket_view = True
        if self.is_deepspeed_enabled:
            # accelerate uses DeepSpeed's number, and warns if this one differs.
            self.accelerator.gradient_accumulation_steps = self.args.gradient_accumulation_steps
        self.zero: Zero | None = None
        self.adapter = AdapterFolder(self.model, base) if base is not None else None
        if base is not None and base.kind == "qlora":
            # TRL has cast the adapters to bfloat16, which rounds small optimizer steps away.
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.float()
        self.recorder = Recorder(self, make_evaluate(run, run_parts.prepared))
        self.checkpointer = Checkpointer(self, use_cache=run_parts.prepared.use_cache)
        # In this order: a step is recorded before it is saved.
        for callback in (StopAtStepEnd(run_parts.stop, self.accelerator), self.recorder, self.checkpointer):
            self.add_callback(callback)
        if config.track.to and self.accelerator.is_main_process:
            self.recorder.tracking = RunTracking(config, run, run_parts.reporter.show)

    def gather_parameters(self) -> AbstractContextManager[None]:
        return nullcontext() if self.zero is None else self.zero.gather_parameters()

    def step_metrics(self) -> dict[str, Any]:
        """Return the metrics of the last optimizer step, with `update_tokens`."""
        raise NotImplementedError

    def take_seconds(self) -> dict[str, float]:
        """Return and reset the seconds outside the update, by phase."""
        return {}

    def position(self) -> tuple[dict[str, Any], list[TensorRows]]:
        """Return counters (JSON) and this process's tensors to resume from, besides transformers' state."""
        return {}, []

    def restore_position(self, counters: dict[str, Any], rows: list[TensorRows]) -> None:
        """Restore :meth:`position`."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> float:
        # The last chance to keep a NaN out of the weights.
        loss = float(self.accelerator.reduce(self._tr_loss.double(), reduction="mean"))
        self._tr_loss = torch.zeros_like(self._tr_loss)
        norm = float(super()._get_grad_norm(model, grad_norm))
        self.recorder.grad_norm, self.recorder.learning_rate = norm, self._get_learning_rate()
        if not self.skips.accept(self.state.global_step + 1, loss, norm):
            if self.zero is not None:
                # DeepSpeed has skipped the step, so transformers does not advance the schedule.
                self.lr_scheduler.step()
            # None, not zeros: the optimizer then skips the parameter, including momentum and decay.
            for parameter in model.parameters():
                parameter.grad = None
        return norm

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:  # type: ignore[has-type]
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self.config.learning_rate.factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        self.checkpointer.load_weights(Path(resume_from_checkpoint))

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        # Load the checkpoint's weights before the model is sharded.
        if resume_from_checkpoint and self.is_deepspeed_enabled:
            self.checkpointer.load_weights(Path(resume_from_checkpoint))
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        if self.is_deepspeed_enabled:
            self.zero = Zero(self)
        return prepared
