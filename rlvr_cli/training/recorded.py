"""Keeps the directory of a run while a trainer makes its steps: health, records and exact checkpoints."""

from __future__ import annotations

import errno
import json
import math
import re
import shutil
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from signal import Signals
from typing import Any

import torch
from accelerate.utils import gather_object
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from rlvr_cli.config.batch import BatchArithmetic, learning_rate_factor
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import append_jsonl, fsync
from rlvr_cli.launch.stopping import SIGNALS, StopRequest
from rlvr_cli.models.adapter import AdapterFolder, load_adapter_of_checkpoint, trained_tensors
from rlvr_cli.models.source import Base
from rlvr_cli.runs import records
from rlvr_cli.runs.checkpoints import keep_newest, write_checkpoint
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import drop_made_again
from rlvr_cli.training import state
from rlvr_cli.training.buffer import Rows
from rlvr_cli.training.managed import ManagedTrainer
from rlvr_cli.training.progress import Reporter
from rlvr_cli.training.sharding.base import load_weights, optimizer_name
from rlvr_cli.training.sharding.choose import sharding_of
from rlvr_cli.training.value_head import HEAD_FILE, split_off
from rlvr_cli.training.value_head import NAME as VALUE_HEAD_NAME

# From the number of rollouts done to the means of an evaluation, in rank 0.
Evaluate = Callable[[int], dict[str, Any] | None]


class RecordedTrainer(ManagedTrainer):
    """What every kind of training shares. Mixed in before the trainer that makes the gradient.

    Args:
        evaluate: held-out evaluation after a rollout (its number, from 1), called where ``eval.every`` says; its JSON
            goes into the step's line of metrics.jsonl. None: there is none.
        executed: how often each term of the method was executed, counted by whoever executes it.
        base: the model that adapters are trained on; None where every weight is trained.
    """

    def __init__(
        self,
        *,
        config: Config,
        batch: BatchArithmetic,
        run: RunDir,
        reporter: Reporter,
        stop: StopRequest,
        evaluate: Evaluate | None,
        executed: Counter[str],
        base: Base | None = None,
        **arguments: Any,
    ) -> None:
        self.config, self.batch, self.run = config, batch, run
        self.reporter, self.evaluate_held_out, self.executed = reporter, evaluate, executed
        self.skips = 0
        self._last_row: dict[str, Any] = {}
        self._step_started = time.perf_counter()
        self._use_cache = getattr(arguments["model"].config, "use_cache", True)
        super().__init__(**arguments)
        self._sealer = records.Sealer(run)
        self.sharding = sharding_of(self, config)
        self.adapter = AdapterFolder(self.model, base) if base is not None else None
        if base is not None and base.kind == "qlora":
            # TRL has made them bfloat16, to which small steps of the optimizer add nothing.
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.float()
        self.add_callback(_StopAtStepEnd(stop, self._agreed))
        if config.run.track and self.accelerator.is_main_process:
            from rlvr_cli.training.tracking import Tracking

            self.add_callback(Tracking(config, run, reporter))

    @abstractmethod
    def step_numbers(self) -> dict[str, Any]:
        """What metrics.jsonl says of the optimizer step just made; `update_tokens` among it."""

    def notices(self) -> list[str]:
        """What a person should be told once, after the step just made."""
        return []

    def alerts(self, row: dict[str, Any]) -> dict[str, Any]:
        """What else the line ``row`` of metrics.jsonl says: the alerts that its numbers raise."""
        return {}

    def check_alerts(self) -> None:
        """Raise RunError where the step just made, recorded by now, is to be the last."""

    @abstractmethod
    def spent(self) -> dict[str, float]:
        """Seconds since the last call that went to anything but the update, by name."""

    @abstractmethod
    def position(self) -> tuple[dict[str, Any], list[Rows]]:
        """Counters (JSON) and tensors of this process that a resumed training needs beside weights and optimizer."""

    @abstractmethod
    def restore_position(self, counters: dict[str, Any], rows: list[Rows]) -> None:
        """Continue where :meth:`position` was called."""

    def learning_rate_factor(self, step: int) -> float:
        return learning_rate_factor(self.config, step)

    # --- health ------------------------------------------------------------------------------------------------

    def accept_gradient(self, loss: float, grad_norm: float) -> bool:
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return True
        what = f"step {self.state.global_step + 1}: loss {loss:g}, gradient norm {grad_norm:g}"
        if self.config.train.on_nonfinite == "stop":
            raise RunError(
                f"{what}. The weights were not touched; the newest checkpoint is from before. A smaller "
                "optimizer.lr or update.max_grad_norm often helps; train.on_nonfinite=skip passes over such steps."
            )
        self.skips += 1
        self.reporter.message(f"{what}: skipped ({self.skips} of at most {self.config.train.max_skips})")
        self.check_skips()
        return False

    def check_skips(self) -> None:
        """Stop the run when more steps than allowed were passed over."""
        if self.skips > self.config.train.max_skips:
            raise RunError(
                f"more than train.max_skips={self.config.train.max_skips} updates were not finite. The weights were "
                "not touched by them; the newest checkpoint is from before."
            )

    def _agreed(self, own: Signals | None) -> Signals | None:
        """The signal that a process was sent, SIGTERM before SIGINT before SIGHUP; called in every process."""
        if self.accelerator.num_processes == 1:
            return own
        sent = torch.tensor([own == number for number in SIGNALS], device=self.args.device)
        anywhere = self.accelerator.reduce(sent.float(), reduction="sum").tolist()
        return max((number for number, count in zip(SIGNALS, anywhere, strict=True) if count), default=None)

    # --- records -----------------------------------------------------------------------------------------------

    def record_step(self, step: int, grad_norm: float, learning_rate: float) -> None:
        rollout, update = divmod(step - 1, self.batch.steps_per_rollout)
        last_update = update + 1 == self.batch.steps_per_rollout
        row: dict[str, Any] = {
            "step": step,
            "rollout": rollout,
            "update": update,
            **self.step_numbers(),
            "grad_norm": grad_norm if math.isfinite(grad_norm) else None,
            "learning_rate": learning_rate,
            "skips": self.skips,
        }
        timing = self._timing(row["update_tokens"])
        held_out = self._held_out(rollout + 1) if last_update else None
        if held_out is not None:
            row["eval"] = held_out
        row.update(self.alerts(row))
        self._last_row = row
        if self.accelerator.is_main_process:
            append_jsonl(self.run.metrics_path, [row])
            append_jsonl(self.run.timings_path, [{"step": step, **timing}])
            self.callback_handler.on_log(self.args, self.state, self.control, row)
        self.reporter.step({**row, "last_update": last_update}, timing)
        for notice in self.notices():
            self.reporter.message(notice)
        self.check_alerts()
        self._step_started = time.perf_counter()

    def _held_out(self, rollouts: int) -> dict[str, Any] | None:
        """The means of an evaluation that every process has a share in, in rank 0; None in the others."""
        if self.evaluate_held_out is None or rollouts % self.config.eval.every:
            return None
        with self.sharding.whole():
            return self.evaluate_held_out(rollouts)

    def _timing(self, tokens: float) -> dict[str, float]:
        seconds = time.perf_counter() - self._step_started
        spent = self.spent()
        return {
            "seconds": seconds,
            **{f"seconds/{name}": value for name, value in spent.items()},
            "seconds/update": seconds - sum(spent.values()),
            "tokens_per_second": tokens / seconds,
        }

    # --- checkpoints -------------------------------------------------------------------------------------------

    def saved_parts(self) -> tuple[Any, dict[str, torch.Tensor], dict[str, dict[str, torch.Tensor]]]:
        """The model that a checkpoint shows to others, its weights, and what else is trained: tensors by file name.

        Called in every process.
        """
        state_dict = self.sharding.gathered(trained_tensors) if self.adapter else self.sharding.weights()
        weights, value_head = split_off(state_dict)
        return self.adapter or self.model, weights, {HEAD_FILE: value_head} if value_head else {}

    def load_parts(self, folder: Path) -> None:
        """Load the files of :meth:`saved_parts` from ``folder``; the model's weights are loaded already."""
        if (folder / HEAD_FILE).exists():
            model = self.model.get_base_model() if self.adapter else self.model
            model.get_submodule(VALUE_HEAD_NAME).load_state_dict(load_file(folder / HEAD_FILE))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.adapter is not None:
            load_adapter_of_checkpoint(self.model, Path(resume_from_checkpoint))
        elif self.sharding.divided:
            load_weights(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def save_checkpoint(self, step: int) -> None:
        position, rows = self.position()
        model, weights, others = self.saved_parts()
        processes = gather_object([state.pack_process(rows)])
        optimizer_parts = self._write_optimizer_parts(step) if self.sharding.divided else None
        if self.accelerator.is_main_process:
            self._check_finite(
                step, {**weights, **{name: one for part in others.values() for name, one in part.items()}}
            )
            counters = {
                **position,
                "skips": self.skips,
                "processes": len(processes),
                "executed": self.executed,
                "sharding": self.sharding.described(),
            }

            def write(folder: Path) -> None:
                # Trainer switches the cache off in the configuration; whoever loads the checkpoint wants it.
                model.config.use_cache, trained_with = self._use_cache, model.config.use_cache
                try:
                    model.save_pretrained(folder, state_dict=weights)
                finally:
                    model.config.use_cache = trained_with
                self.processing_class.save_pretrained(folder)
                self.state.save_to_json(str(folder / "trainer_state.json"))
                inner = folder / state.FOLDER
                inner.mkdir()
                if optimizer_parts is None:
                    state.save_optimizer(inner, self.sharding.optimizer_part())
                else:
                    for part in sorted(optimizer_parts.iterdir()):
                        part.rename(inner / part.name)
                    optimizer_parts.rmdir()
                for name, tensors in others.items():
                    save_file(tensors, inner / name)
                (inner / state.SCHEDULER).write_text(json.dumps(self.lr_scheduler.state_dict()), encoding="utf-8")
                (inner / state.COUNTERS).write_text(json.dumps(counters), encoding="utf-8")
                (folder / records.IN_CHECKPOINT).write_text(records.seal_text(seal), encoding="utf-8")
                for rank, packed in enumerate(processes):
                    (inner / state.PROCESS.format(rank=rank)).write_bytes(packed)
                for path in folder.rglob("*.safetensors"):
                    path.chmod(0o644)  # safetensors makes files that nobody else may read

            # A checkpoint must never be ahead of what was recorded before it, a power cut included.
            for path in (self.run.metrics_path, self.run.timings_path, self.run.rollouts_dir):
                fsync(path)
            seal = self._sealer.seal()
            try:
                write_checkpoint(self.run.checkpoints_dir, step, write)
            except SafetensorError as error:
                # The library reports a full disk in a type of its own.
                number = re.search(r"os error (\d+)", str(error))
                raise OSError(int(number[1]) if number else errno.EIO, str(error), str(self.run.path)) from error
            keep_newest(self.run.checkpoints_dir, self.config.checkpoint.keep, step=step)
            drop_made_again(self.run)
            rollout = step // self.batch.steps_per_rollout
            self.run.update_manifest(step=step, rollout=rollout, last_metrics=self._last_row)
        self.accelerator.wait_for_everyone()
        self._step_started = time.perf_counter()  # the save is not the next update's

    def _check_finite(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise RunError rather than save weights from which nothing can go on."""
        broken = [name for name, one in tensors.items() if one.is_floating_point() and not one.isfinite().all()]
        if broken:
            raise RunError(
                f"step {step}: {len(broken)} of {len(tensors)} weight tensors are not finite ({broken[0]}), so no "
                "checkpoint was written; the newest is from before. A smaller optimizer.lr or update.max_grad_norm "
                "often helps."
            )

    def _write_optimizer_parts(self, step: int) -> Path:
        """Every process writes its part of the optimizer's state into a folder of rank 0's; returns the folder."""
        folder = self.run.checkpoints_dir / f".parts-step-{step}"
        if self.accelerator.is_main_process:
            for left_over in self.run.checkpoints_dir.glob(".parts-step-*"):
                shutil.rmtree(left_over)
            folder.mkdir()
        self.accelerator.wait_for_everyone()
        name = optimizer_name(self.accelerator.process_index)
        state.save_optimizer(folder, self.sharding.optimizer_part(), name)
        self.accelerator.wait_for_everyone()
        return folder

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        # A model that is going to be divided takes the checkpoint's weights while it is whole.
        before = Path(resume_from_checkpoint) if resume_from_checkpoint and self.sharding.divided else None
        if before is not None:
            self._load_from_checkpoint(str(before))
            self.load_parts(before / state.FOLDER)
        prepared = super()._prepare_for_training(
            max_steps, train_dataloader, None if before else resume_from_checkpoint
        )
        self.sharding.begin()
        if before is not None:
            self._load_optimizer_and_scheduler(str(before))
        return prepared

    def load_checkpoint(self, path: Path) -> None:
        inner = path / state.FOLDER
        counters = json.loads((inner / state.COUNTERS).read_text(encoding="utf-8"))
        if counters["processes"] != self.accelerator.num_processes:
            raise RunError(
                f"{path} was written by {counters['processes']} processes and cannot be resumed by "
                f"{self.accelerator.num_processes}. Start as many processes as before."
            )
        self.sharding.check_same(path, counters.get("sharding"))
        name = optimizer_name(self.accelerator.process_index) if self.sharding.divided else state.OPTIMIZER
        self.sharding.restore_optimizer_part(state.load_optimizer(inner, name))
        if not self.sharding.divided:
            self.load_parts(inner)
        self._restore_schedule(json.loads((inner / state.SCHEDULER).read_text(encoding="utf-8")))
        self.skips = counters["skips"]
        self.executed.update(counters["executed"])
        self.restore_position(counters, self._process_state(path)[1])

    def _restore_schedule(self, saved: dict[str, Any]) -> None:
        # The rate of the next step was set when the checkpoint was written, before the run was
        # extended; otherwise this is the same number.
        factor = self.learning_rate_factor(saved["last_epoch"])
        saved["_last_lr"] = [peak * factor for peak in saved["base_lrs"]]
        for group, rate in zip(self.optimizer.param_groups, saved["_last_lr"], strict=True):
            group["lr"] = rate
        self.lr_scheduler.load_state_dict(saved)

    def load_random_states(self, path: Path) -> None:
        state.restore_random_states(self._process_state(path)[0])

    def _process_state(self, path: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
        return state.unpack_process(path / state.FOLDER / state.PROCESS.format(rank=self.accelerator.process_index))


class _StopAtStepEnd(TrainerCallback):
    """Saves and stops at the end of the step in which a signal arrived, in all processes at the same one.

    Args:
        agreed: the signal of any process, in every one of them.
    """

    def __init__(self, stop: StopRequest, agreed: Callable[[Signals | None], Signals | None]) -> None:
        self.stop, self.agreed = stop, agreed

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.stop.signal = self.agreed(self.stop.signal)
        if self.stop.signal is not None:
            control.should_save = control.should_training_stop = True
        return control
