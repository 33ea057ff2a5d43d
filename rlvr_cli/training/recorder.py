"""Callbacks of a run's steps: records, skipped non-finite steps, stop signals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from signal import Signals
from typing import Any

import torch
from transformers import TrainerCallback

from rlvr_cli.config.schema import TrainConfig
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import append_jsonl
from rlvr_cli.launch.stopping import SIGNALS, StopRequest
from rlvr_cli.tracking.tracking import RunTracking
from rlvr_cli.training.alerts import TrainingAlerts

# From the number of finished rollouts to the metrics of an evaluation (None except in rank 0).
Evaluate = Callable[[int], dict[str, Any] | None]


class Recorder(TrainerCallback):
    """Records each optimizer step in metrics.jsonl and timings.jsonl, and shows it.

    Every process calls it; only rank 0 writes.

    Args:
        evaluate: held-out evaluation after a rollout (its number, from 1), called every ``validation.every`` rollouts
            and recorded with the step; None = no evaluation.

    Attributes:
        grad_norm, learning_rate: of the current step.
        alerts: None for supervised fine-tuning.
        tracking: the run's trackers, in rank 0; None without trackers.
        last_row: the newest line of metrics.jsonl.
    """

    def __init__(self, trainer: Any, evaluate: Evaluate | None) -> None:
        self.trainer, self.evaluate = trainer, evaluate
        self.grad_norm, self.learning_rate = math.nan, math.nan
        self.alerts: TrainingAlerts | None = None
        self.tracking: RunTracking | None = None
        self.last_row: dict[str, Any] = {}
        self._step_started = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tracking is not None:
            self.tracking.begin(int(state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.tracking is not None:
            self.tracking.end()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step_started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        step, per_rollout = int(state.global_step), trainer.batch.steps_per_rollout
        rollout, update = divmod(step - 1, per_rollout)
        last_update = update + 1 == per_rollout
        row: dict[str, Any] = {
            "step": step,
            "rollout": rollout,
            "update": update,
            **trainer.step_metrics(),
            "grad_norm": self.grad_norm if math.isfinite(self.grad_norm) else None,
            "learning_rate": self.learning_rate,
            "skips": trainer.skips.count,
        }
        timing = self._timing(row["update_tokens"])
        held_out = self._evaluate(rollout + 1) if last_update else None
        if held_out is not None:
            row["eval"] = {name: metric["value"] for name, metric in held_out.items()}
        if self.alerts is not None:
            row |= self.alerts.observe(row)
        self.last_row = row
        if trainer.accelerator.is_main_process:
            append_jsonl(trainer.run.metrics_path, [row])
            append_jsonl(trainer.run.timings_path, [{"step": step, **timing}])
            if self.tracking is not None:
                self.tracking.step(row)
        trainer.reporter.show_step({**row, "last_update": last_update}, timing)
        if held_out is not None:
            trainer.reporter.show_evaluation(rollout + 1, held_out)
        if self.alerts is not None:
            self.alerts.report()

    def _evaluate(self, rollouts: int) -> dict[str, Any] | None:
        if self.evaluate is None or rollouts % self.trainer.config.validation.every:
            return None
        self.trainer.reporter.show_activity(
            f"evaluating on {self.trainer.config.validation.problems:,} held-out problems"
        )
        with self.trainer.gather_parameters():
            return self.evaluate(rollouts)

    def _timing(self, tokens: float) -> dict[str, float]:
        seconds = time.perf_counter() - self._step_started
        phases = self.trainer.take_seconds()
        return {
            "seconds": seconds,
            **{f"seconds/{name}": value for name, value in phases.items()},
            "seconds/update": seconds - sum(phases.values()),
            "tokens_per_second": tokens / seconds,
        }


class Skips:
    """Counter of skipped non-finite steps (``train.on_nonfinite``, ``train.max_skips``).

    ``show``: shows the user a line. ``count``: skipped steps, and rollouts with skipped rewards.
    """

    def __init__(self, settings: TrainConfig, show: Callable[[str], None]) -> None:
        self.settings, self.show, self.count = settings, show, 0

    def accept(self, step: int, loss: float, grad_norm: float) -> bool:
        """Return whether the gradient of ``step`` is finite, else count a skip. Raises RunError if the run must end."""
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return True
        numbers = f"step {step}: loss {loss:g}, gradient norm {grad_norm:g}"
        if self.settings.on_nonfinite == "stop":
            raise RunError(
                f"{numbers}. The weights are unchanged; the newest checkpoint is from an earlier step. A smaller "
                "optimizer.lr or update.max_grad_norm often helps; set train.on_nonfinite=skip to skip such steps."
            )
        self.count += 1
        self.show(f"{numbers}: skipped ({self.count} of at most {self.settings.max_skips})")
        self.check()
        return False

    def check(self) -> None:
        """Raise RunError above ``train.max_skips``."""
        if self.count > self.settings.max_skips:
            raise RunError(
                f"more than train.max_skips={self.settings.max_skips} skips: updates with a non-finite loss or "
                "gradient, or rollouts with non-finite or too large rewards. None of them changed the weights; the "
                "newest checkpoint is from an earlier step."
            )


class StopAtStepEnd(TrainerCallback):
    """Stops all processes at the end of the step in which a signal arrived."""

    def __init__(self, stop: StopRequest, accelerator: Any) -> None:
        self.stop, self.accelerator = stop, accelerator

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self.stop.signal = self._reduce_signal(self.stop.signal)
        if self.stop.signal is not None:
            control.should_training_stop = True
        return control

    def _reduce_signal(self, signal: Signals | None) -> Signals | None:
        """Return the signal of any process, SIGTERM before SIGINT before SIGHUP; a collective operation."""
        if self.accelerator.num_processes == 1:
            return signal
        received = torch.tensor([signal == number for number in SIGNALS], device=self.accelerator.device)
        counts = self.accelerator.reduce(received.float(), reduction="sum").tolist()
        return max((number for number, count in zip(SIGNALS, counts, strict=True) if count), default=None)
