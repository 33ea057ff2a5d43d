"""What a run does about alerts: they are recorded, told, or end it (train.on_collapse, train.on_no_signal)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvr_cli.collapse.alerts import SignalWatch
from rlvr_cli.collapse.rules import Thresholds
from rlvr_cli.collapse.watch import Collapse, CollapseWatch
from rlvr_cli.config.batch import BatchArithmetic
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import JointError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training.progress import Reporter


class TrainingAlerts:
    """Looks for a collapse and for a missing signal in the lines of metrics.jsonl; every process has one.

    Args:
        accelerator: its processes wait for each other before they end a run.
    """

    thresholds = Thresholds()

    def __init__(
        self, config: Config, batch: BatchArithmetic, run: RunDir, reporter: Reporter, accelerator: Any
    ) -> None:
        self.config, self.batch, self.run = config, batch, run
        self.reporter, self.accelerator = reporter, accelerator
        self._collapse = CollapseWatch(config.rollout.prompts, self.thresholds)
        self._signal = SignalWatch()
        self._step = 0

    def resume(self) -> None:
        """Look at what was recorded before."""
        lines = read_jsonl(self.run.metrics_path)
        self._collapse.see_all(lines)
        self._signal.see_all(lines)

    def see(self, row: dict[str, Any]) -> dict[str, Any]:
        """What the line says besides: the alerts that its numbers raise."""
        self._step = row["step"]
        found: dict[str, Any] = {}
        if self.config.train.on_no_signal != "off":
            self._signal.see(row)
            found |= self._signal.fields(row["rollout"])
        if self.config.train.on_collapse != "off":
            self._collapse.see(row)
            found |= self._collapse.fields(row["rollout"])
        return found

    def tell(self) -> None:
        """Say what begins with the step just recorded; raise JointError where it is the last."""
        rollout, update = divmod(self._step - 1, self.batch.steps_per_rollout)
        # Of a rollout, after its first step.
        idle = update == 0 and self._signal.begins(rollout)
        begun = self._collapse.begins(rollout) if update == 0 else []
        on_no_signal, on_collapse = self.config.train.on_no_signal, self.config.train.on_collapse
        if idle and on_no_signal == "warn":
            self.reporter.message(f"alert: {self._signal.sentence()}")
        if on_collapse != "stop":  # else said with what follows from it
            for collapse in begun:
                self.reporter.message(f"alert: {collapse}")
        # The first error of any process ends them all: not before rank 0 has recorded the step.
        if idle and on_no_signal == "stop":
            self.accelerator.wait_for_everyone()
            raise JointError(
                f"{self._signal.sentence()} Stopped, as train.on_no_signal=stop says; with warn it is only said, and "
                "`rlvr train --resume` would stop here again."
            )
        if begun and on_collapse == "stop":
            self.accelerator.wait_for_everyone()
            raise collapsed(begun, self._collapse.last_sound(begun), self.run, self.batch)


def collapsed(found: Sequence[Collapse], sound: int, run: RunDir, batch: BatchArithmetic) -> JointError:
    """The end of a run by a collapse: what was found, and how to go on.

    Args:
        found: the collapses that began after the same rollout. sound: the last rollout, from 0, from before.
    """
    before = f"from before it began (in rollout {sound + 2})"
    # The policy that sampled the last sound rollout.
    step = sound * batch.steps_per_rollout
    checkpoints = [entry for entry in valid_checkpoints(run.checkpoints_dir) if entry.step <= step]
    again = f"rlvr train -c {run.config_path} run.name=NEW"
    if checkpoints:
        advice = (
            f"The newest checkpoint {before} is {checkpoints[0].path}; to go on from it with other settings: {again} "
            f"model.name={checkpoints[0].path} optimizer.lr=..."
        )
    else:
        advice = (
            f"No checkpoint {before} was kept (checkpoint.every, checkpoint.keep); to start again with other settings: "
            f"{again} optimizer.lr=..."
        )
    return JointError(
        f"rollout {found[0].first + 1}: {'; '.join(map(str, found))}. Stopped, as train.on_collapse=stop says. "
        f"{advice} With train.on_collapse=warn it is only said; `rlvr train --resume` would stop here again."
    )
