"""Save a run's checkpoints atomically, and resume from them exactly."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.trainer_utils import load_sharded_checkpoint
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import fsync
from rlvr_cli.models.adapter import load_trained_tensors, trained_tensors
from rlvr_cli.models.source import ADAPTER_WEIGHTS
from rlvr_cli.runs.checkpoints import keep_newest, write_checkpoint
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import IN_CHECKPOINT, Sealer, delete_repeated_records
from rlvr_cli.runs.seal import Entries, write_seal
from rlvr_cli.runs.trained_on import FILE as TRAINED_ON
from rlvr_cli.training import checkpoint_state
from rlvr_cli.training.value_head import HEAD_FILE, split_value_head
from rlvr_cli.training.value_head import NAME as VALUE_HEAD
from rlvr_cli.training.zero import Zero


class Checkpointer(TrainerCallback):
    """Saves every ``checkpoint.every`` steps and when the training stops, keeps the newest, and resumes.

    ``use_cache``: the model's configured `use_cache`, which the trainer disables.
    """

    def __init__(self, trainer: Any, *, use_cache: bool) -> None:
        self.trainer, self.use_cache = trainer, use_cache
        self.run: RunDir = trainer.run
        self._sealer = Sealer(trainer.run)
        # The checkpoint to resume from, until its state and then its random states are restored.
        self._resuming: Path | None = None

    # --- save --------------------------------------------------------------------------------------------------

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.trainer.config.checkpoint.every == 0 or control.should_training_stop:
            self.save(int(state.global_step))

    def save(self, step: int) -> None:
        """Write the checkpoint of ``step``; called in every process. Raises RunError for non-finite weights."""
        trainer = self.trainer
        trainer.store_flos()
        position, rows = trainer.position()
        weights, value_head = self._weights()
        processes = gather_object([checkpoint_state.pack_process(rows)])
        optimizer_shards = None if trainer.zero is None else self._write_optimizer_shards(step, trainer.zero)
        if trainer.accelerator.is_main_process:
            _check_finite(step, {**weights, **value_head})
            counters = {
                **position,
                "skips": trainer.skips.count,
                "executed": trainer.executed,
                "deepspeed": trainer.args.deepspeed,
            }
            # A checkpoint must never be ahead of the records, even after a power cut.
            for path in (self.run.metrics_path, self.run.timings_path, self.run.rollouts_dir):
                fsync(path)
            seal = self._sealer.seal()
            try:
                write_checkpoint(
                    self.run.checkpoints_dir,
                    step,
                    lambda folder: self._write(
                        folder, weights, value_head, counters, processes, optimizer_shards, seal
                    ),
                )
            except SafetensorError as error:
                # safetensors wraps the error of a full disk.
                number = re.search(r"os error (\d+)", str(error))
                raise OSError(int(number[1]) if number else errno.EIO, str(error), str(self.run.path)) from error
            keep_newest(self.run.checkpoints_dir, trainer.config.checkpoint.keep, step=step)
            delete_repeated_records(self.run)
            rollout = step // trainer.batch.steps_per_rollout
            self.run.update_manifest(step=step, rollout=rollout, last_metrics=trainer.recorder.last_row)
        trainer.accelerator.wait_for_everyone()

    def _weights(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the weights of the model (or adapters) and of the value head; called in every process."""
        model, zero = self.trainer.model, self.trainer.zero
        if self.trainer.adapter:
            weights = trained_tensors(model) if zero is None else zero.gather_trained(trained_tensors)
        else:
            weights = model.state_dict() if zero is None else zero.gather_state_dict()
        return split_value_head(weights)

    def _write(
        self,
        folder: Path,
        weights: dict[str, Tensor],
        value_head: dict[str, Tensor],
        counters: dict[str, Any],
        processes: list[bytes],
        optimizer_shards: Path | None,
        seal: Entries,
    ) -> None:
        trainer = self.trainer
        model = trainer.adapter or trainer.model
        # Trainer disables the cache in the configuration; loaded checkpoints need it.
        model.config.use_cache, trained_with = self.use_cache, model.config.use_cache
        try:
            model.save_pretrained(folder, state_dict=weights)
        finally:
            model.config.use_cache = trained_with
        trainer.processing_class.save_pretrained(folder)
        trainer.state.save_to_json(str(folder / "trainer_state.json"))
        inner = folder / checkpoint_state.FOLDER
        inner.mkdir()
        if optimizer_shards is None:
            checkpoint_state.save_optimizer(inner, trainer.optimizer.state_dict())
        else:
            for file in sorted(optimizer_shards.iterdir()):
                file.rename(inner / file.name)
            optimizer_shards.rmdir()
        if (self.run.path / TRAINED_ON).is_file():
            shutil.copyfile(self.run.path / TRAINED_ON, inner / TRAINED_ON)
        if value_head:
            save_file(value_head, inner / HEAD_FILE)
        if trainer.past_weights is not None:
            trainer.past_weights.save(inner)
        (inner / checkpoint_state.SCHEDULER).write_text(json.dumps(trainer.lr_scheduler.state_dict()), encoding="utf-8")
        (inner / checkpoint_state.COUNTERS).write_text(json.dumps(counters), encoding="utf-8")
        write_seal(folder / IN_CHECKPOINT, seal)
        for rank, packed in enumerate(processes):
            (inner / checkpoint_state.PROCESS.format(rank=rank)).write_bytes(packed)
        for path in folder.rglob("*.safetensors"):
            path.chmod(0o644)  # safetensors writes with mode 0600

    def _write_optimizer_shards(self, step: int, zero: Zero) -> Path:
        """Write the optimizer shard of every process; return their folder."""
        accelerator = self.trainer.accelerator
        folder: Path = self.run.checkpoints_dir / f".shards-step-{step}"
        if accelerator.is_main_process:
            for stale in self.run.checkpoints_dir.glob(".shards-step-*"):
                shutil.rmtree(stale)
            folder.mkdir()
        accelerator.wait_for_everyone()
        checkpoint_state.save_optimizer(folder, zero.optimizer_state(), self._shard_name())
        accelerator.wait_for_everyone()
        return folder

    def _shard_name(self) -> str:
        return f"{checkpoint_state.OPTIMIZER}-{self.trainer.accelerator.process_index}"

    # --- resume ------------------------------------------------------------------------------------------------

    def load_weights(self, checkpoint: Path) -> None:
        """Load the weights of ``checkpoint`` into the unsharded model; `on_train_begin` restores the rest."""
        self._resuming = checkpoint
        model = self.trainer.model
        if self.trainer.adapter is not None:
            load_trained_tensors(model, load_file(checkpoint / ADAPTER_WEIGHTS))
            model = model.get_base_model()
        else:
            _load_model_weights(model, checkpoint)
        head = checkpoint / checkpoint_state.FOLDER / HEAD_FILE
        if head.exists():
            model.get_submodule(VALUE_HEAD).load_state_dict(load_file(head))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._resuming is not None:
            self._restore(self._resuming)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # After the data loader has skipped to the checkpoint's position, which may consume random numbers.
        if self._resuming is not None:
            checkpoint_state.restore_random_states(self._load_process(self._resuming)[0])
            self._resuming = None

    def _restore(self, checkpoint: Path) -> None:
        trainer, inner = self.trainer, checkpoint / checkpoint_state.FOLDER
        counters = json.loads((inner / checkpoint_state.COUNTERS).read_text(encoding="utf-8"))
        if counters.get("deepspeed") != trainer.args.deepspeed:
            raise RunError(
                f"{checkpoint} was written with another DeepSpeed configuration than "
                f"launch.deepspeed={trainer.config.launch.deepspeed}. Restore that configuration."
            )
        if trainer.zero is None:
            trainer.optimizer.load_state_dict(checkpoint_state.load_optimizer(inner))
        else:
            trainer.zero.load_optimizer_state(checkpoint_state.load_optimizer(inner, self._shard_name()))
        self._restore_schedule(json.loads((inner / checkpoint_state.SCHEDULER).read_text(encoding="utf-8")))
        trainer.skips.count = counters["skips"]
        trainer.executed.update(counters["executed"])
        if trainer.past_weights is not None:
            trainer.past_weights.load(inner)
        trainer.restore_position(counters, self._load_process(checkpoint)[1])

    def _restore_schedule(self, saved: dict[str, Any]) -> None:
        # Recomputed for a run that was extended after the checkpoint; otherwise the same number.
        schedule = self.trainer.lr_scheduler
        factor = self.trainer.config.learning_rate.factor(saved["last_epoch"])
        saved["_last_lr"] = [peak * factor for peak in saved["base_lrs"]]
        for group, rate in zip(self.trainer.optimizer.param_groups, saved["_last_lr"], strict=True):
            group["lr"] = rate
        schedule.load_state_dict(saved)

    def _load_process(self, checkpoint: Path) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        rank = self.trainer.accelerator.process_index
        return checkpoint_state.unpack_process(
            checkpoint / checkpoint_state.FOLDER / checkpoint_state.PROCESS.format(rank=rank)
        )


def _load_model_weights(model: nn.Module, folder: Path) -> None:
    """Load a checkpoint's weights into an unsharded model. Raises RunError for another model's weights."""
    if (folder / SAFE_WEIGHTS_INDEX_NAME).exists():
        result = load_sharded_checkpoint(model, str(folder), strict=False, prefer_safe=True)
    else:
        result = model.load_state_dict(load_file(folder / SAFE_WEIGHTS_NAME), strict=False)
    ties = set(getattr(model, "all_tied_weights_keys", None) or {})
    # PPO's value head is in a separate file.
    missing = [key for key in result.missing_keys if key not in ties and not key.startswith(f"{VALUE_HEAD}.")]
    if missing or result.unexpected_keys:
        keys = ", ".join([*missing, *result.unexpected_keys][:3])
        raise RunError(
            f"{folder}: its weights do not match the model (missing or unexpected: {keys}). Check model.name and "
            "model.adapter."
        )


def _check_finite(step: int, tensors: Mapping[str, torch.Tensor]) -> None:
    nonfinite = [name for name, tensor in tensors.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if nonfinite:
        raise RunError(
            f"step {step}: {len(nonfinite)} of {len(tensors)} weight tensors are not finite ({nonfinite[0]}), so no "
            "checkpoint was written; the newest one is from an earlier step. A smaller optimizer.lr or "
            "update.max_grad_norm often helps."
        )
