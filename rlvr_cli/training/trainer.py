"""The trainer of a run with a policy-gradient method: its seeds, and what its steps record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlvr_cli.collapse.alerts import SignalWatch
from rlvr_cli.collapse.rules import Thresholds
from rlvr_cli.collapse.watch import Collapse, CollapseWatch
from rlvr_cli.config.batch import BatchArithmetic
from rlvr_cli.core.errors import JointError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.models.adapter import merged
from rlvr_cli.models.sampling.engine import Completions, Engine
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training.buffer import Rows, row_order
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.recorded import RecordedTrainer
from rlvr_cli.training.rollouts import RolloutSource
from rlvr_cli.training.sampler_check import Precision, SamplerCheck, differences, not_renewed, sampler_check
from rlvr_cli.training.trl_adapter import MethodTrainer
from rlvr_cli.training.vllm.engine import VllmEngine


class RunTrainer(RecordedTrainer, MethodTrainer):
    """Trains one run and keeps its directory."""

    rollouts: RolloutSource
    meter: StepMeter
    # What samples no policy, such as a probe, sets it and is not checked.
    sampler_checked = False
    thresholds = Thresholds()

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.rollouts.model = self.model
        engine = self.rollouts.engine
        # With vLLM the second rollout is the first that shows whether it takes new weights, and after a resume too.
        self._checked: SamplerCheck | None = None
        self._checks = ["sampler_check", "sampler_check_after_update"] if isinstance(engine, VllmEngine) else []
        self.rollouts.engine = (
            self._with_these_weights(engine) if isinstance(engine, VllmEngine) else self._of_whole_parameters(engine)
        )
        self._watch = CollapseWatch(self.config.rollout.prompts, self.thresholds)
        self._signal = SignalWatch()

    def _of_whole_parameters(self, engine: Engine) -> Engine:
        """``engine``, which reads weights that may be divided among the processes; each calls it as often."""

        def sample(*arguments: Any, **named: Any) -> Completions:
            with self.sharding.whole():
                return engine(*arguments, **named)

        return sample

    def _with_these_weights(self, engine: VllmEngine) -> Engine:
        """``engine``, which is given the weights first whenever they have changed."""

        def sample(*arguments: Any, **named: Any) -> Completions:
            step = int(self.state.global_step)
            if engine.step != step:
                with self.sharding.whole(), merged(self.model) as plain:
                    engine.take(plain, step)
                self.accelerator.wait_for_everyone()
            return engine(*arguments, **named)

        return sample

    def begin_updates(self, rollout: int) -> None:
        self._metrics["train"].clear()  # TRL's own, which nobody reads here
        self.skips += self.rollouts.unscored > 0
        self.check_skips()
        seed = stream_seed(self.config.run.seed, "update", rollout, self.accelerator.process_index)
        # What torch.manual_seed does, which also formats the stack once for each kind of device that is not there.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)

    def rollout_sampled(self, rows: Rows) -> None:
        """Check the sampler: at a run's first rollout, with vLLM at the first two of every start."""
        if self.sampler_checked:
            return
        if not self._checks and self.rollout_index > 0:
            self.sampler_checked = True
            return
        name = self._checks.pop(0) if self._checks else "sampler_check"
        self.sampler_checked = not self._checks
        mask, training = rows["completion_mask"], self.model.training
        self.model.eval()  # the sampler has no dropout
        try:
            own = self._without_gradient(rows).log_probs
        finally:
            self.model.train(training)
        parts = differences(self._sampler_log_probs(rows), own, mask)
        check = sampler_check(self.accelerator.gather(parts), self._precision())
        self.reporter.log(check.sentence())
        stale = None if self._checked is None else not_renewed(self._checked, check)
        self._checked = check
        for warning in (None if check.matches else check.warning(), stale):
            if warning is not None:
                self.reporter.message(warning)
        if self.accelerator.is_main_process:
            self.run.update_manifest(**{name: check.record()})

    def initial_entropy_measured(self, nats: float) -> None:
        self.reporter.log(f"mean entropy before training: {nats:.4f} nats")
        if self.accelerator.is_main_process:
            self.run.update_manifest(initial_entropy=nats)

    def _precision(self) -> Precision:
        weights = {parameter.dtype for parameter in self.model.parameters() if parameter.is_floating_point()}
        half = self.args.bf16 or self.args.fp16 or self.config.model.adapter.kind == "qlora"
        return "bfloat16" if half or weights & {torch.bfloat16, torch.float16} else "float32"

    def row_order(self, rollout: int, rows: int) -> torch.Tensor:
        return row_order(self.config.run.seed, rollout, rows)

    def step_numbers(self) -> dict[str, Any]:
        sums = self.accelerator.reduce(self.meter.take().to(self.args.device), reduction="sum").tolist()
        return {"pass": self.finished_pass, **self.rollouts.summary, **self.meter.summary(sums)}

    def alerts(self, row: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.config.train.on_no_signal != "off":
            self._signal.see(row)
            found |= self._signal.fields(row["rollout"])
        if self.config.train.on_collapse != "off":
            self._watch.see(row)
            found |= self._watch.fields(row["rollout"])
        return found

    def notices(self) -> list[str]:
        idle = self.config.train.on_no_signal == "warn" and self._signal_ends()
        said = [f"alert: {self._signal.sentence()}"] if idle else []
        if self.config.train.on_collapse == "stop":
            return said  # said with what follows from it
        return [*said, *(f"alert: {collapse}" for collapse in self._beginning())]

    def check_alerts(self) -> None:
        if self.config.train.on_no_signal == "stop" and self._signal_ends():
            self.accelerator.wait_for_everyone()
            raise JointError(
                f"{self._signal.sentence()}. Stopped, as train.on_no_signal=stop says; with warn it is only said, and "
                f"`rlvr train --resume` would stop here again. `rlvr tasks show {self.config.task.name} "
                f"--model {self.config.model.name}` shows what the model is given."
            )
        if self.config.train.on_collapse == "stop" and (found := self._beginning()):
            # The first error of any process ends them all: not before rank 0 has recorded the step.
            self.accelerator.wait_for_everyone()
            raise collapsed(found, self._watch.last_sound(found), self.run, self.batch)

    def _beginning(self) -> list[Collapse]:
        """The collapses to tell of after the step just made: those of its rollout, after its first step."""
        rollout, update = self._place()
        return self._watch.begins(rollout) if update == 0 else []

    def _signal_ends(self) -> bool:
        """Whether the step just made is the first of a rollout after which the missing signal is told."""
        rollout, update = self._place()
        return update == 0 and self._signal.begins(rollout)

    def _place(self) -> tuple[int, int]:
        """The rollout of the step just made, and its place among the rollout's steps."""
        return divmod(int(self.state.global_step) - 1, self.batch.steps_per_rollout)

    def spent(self) -> dict[str, float]:
        spent = dict(self.rollouts.seconds)
        self.rollouts.seconds = dict.fromkeys(spent, 0.0)
        return spent

    def position(self) -> tuple[dict[str, Any], list[Rows]]:
        steps, buffer, initial_entropy = self.export_position()
        return {
            "steps": steps,
            "initial_entropy": initial_entropy,
            "rollout_summary": self.rollouts.summary,
        }, buffer

    def restore_position(self, counters: dict[str, Any], rows: list[Rows]) -> None:
        self.import_position(counters["steps"], rows, counters["initial_entropy"])
        self.rollouts.summary = counters["rollout_summary"]
        lines = read_jsonl(self.run.metrics_path)
        self._watch.see_all(lines)
        self._signal.see_all(lines)


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
