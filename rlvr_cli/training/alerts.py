"""React to a run's alerts: record, report, or stop it (train.on_collapse, train.on_no_signal)."""

from __future__ import annotations

import shlex
from typing import Any

from rlvr_cli.collapse.alerts import NO_SIGNAL, Alert, AlertMonitor, Thresholds
from rlvr_cli.config.schema import TrainConfig
from rlvr_cli.core.errors import JointError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir


class TrainingAlerts:
    """Monitor of the rows of metrics.jsonl, in every process.

    ``trainer``: the :class:`~rlvr_cli.training.policy_run.PolicyRunTrainer`.
    """

    thresholds = Thresholds()

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.train: TrainConfig = trainer.config.train
        self.run: RunDir = trainer.run
        self._monitor = AlertMonitor(trainer.config.rollout.prompts, self.thresholds)
        self._started: list[Alert] = []

    def resume(self) -> None:
        for row in read_jsonl(self.run.metrics_path):
            self._monitor.add(row)

    def observe(self, row: dict[str, Any]) -> dict[str, Any]:
        self._started = self._monitor.add(row)
        return self._monitor.fields(
            row["rollout"], collapse=self.train.on_collapse != "off", signal=self.train.on_no_signal != "off"
        )

    def report(self) -> None:
        for alert in self._started:
            key = "on_no_signal" if alert.name == NO_SIGNAL else "on_collapse"
            reaction = getattr(self.train, key)
            if reaction == "stop":
                # The first error of any process ends all of them, so wait until rank 0 has recorded the step.
                self.trainer.accelerator.wait_for_everyone()
                raise self._stop_error(alert, key)
            if reaction == "warn":
                self.trainer.reporter.show(f"alert: {alert}")

    def _stop_error(self, alert: Alert, key: str) -> JointError:
        advice = "" if alert.name == NO_SIGNAL else self._restart_advice(alert)
        return JointError(
            f"rollout {alert.first + 1}: {alert}. Stopped because of train.{key}=stop; `rlvr train --resume` would "
            f"stop here again.{advice}"
        )

    def _restart_advice(self, alert: Alert) -> str:
        """Return a sentence with the command that restarts before the alert's window, at half the learning rate."""
        step = max(0, alert.first + 1 - self._monitor.window) * self.trainer.batch.steps_per_rollout
        checkpoints = [saved for saved in valid_checkpoints(self.run.checkpoints_dir) if saved.step <= step]
        start = "newest earlier checkpoint" if checkpoints else "beginning (no earlier checkpoint is kept)"
        half = self.trainer.args.learning_rate / 2
        command = ["rlvr", "train", "-c", str(self.run.config_path), "run.name=NEW"]
        command += [f"model.name={saved.path}" for saved in checkpoints[:1]] + [f"optimizer.lr={half:g}"]
        return f" To restart from the {start} with half the learning rate: {shlex.join(command)}"
