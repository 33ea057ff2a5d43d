"""The trainer of a run with a policy-gradient method: its seeds, and what its steps record."""

from __future__ import annotations

from typing import Any

import torch

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.models.adapter import merged
from rlvr_cli.models.sampling.engine import Completions, Engine
from rlvr_cli.training.alerts import Alerts
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.packing import Rows, row_order, token_rows
from rlvr_cli.training.rollouts import Batch, RolloutSource
from rlvr_cli.training.run_trainer import RunTrainer
from rlvr_cli.training.sampler_check import Precision, SamplerCheck, differences, not_renewed, sampler_check
from rlvr_cli.training.scoring import evaluating
from rlvr_cli.training.trainer import PolicyTrainer
from rlvr_cli.training.vllm.engine import VllmEngine


class PolicyRunTrainer(RunTrainer, PolicyTrainer):
    """Trains one run with a policy gradient and keeps its directory."""

    rollouts: RolloutSource
    meter: StepMeter
    # What samples no policy, such as a probe, sets it and is not checked.
    sampler_checked = False

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
        self.alerts = Alerts(self.config, self.batch, self.run, self.reporter, self.accelerator)
        self.recorder.watch = self.alerts

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
        self.skips.count += self.rollouts.unscored > 0
        self.skips.check()
        seed = stream_seed(self.config.run.seed, "update", rollout, self.accelerator.process_index)
        # What torch.manual_seed does, which also formats the stack once for each kind of device that is not there.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)

    def rollout_collected(self, batch: Batch, rows: Rows) -> None:
        """Check the sampler: at a run's first rollout, with vLLM at the first two of every start."""
        if self.sampler_checked:
            return
        if not self._checks and self.rollout_index > 0:
            self.sampler_checked = True
            return
        name = self._checks.pop(0) if self._checks else "sampler_check"
        self.sampler_checked = not self._checks
        mask = rows["completion_mask"]
        with evaluating(self.model):  # as the sampler
            own = self.forward.without_gradient(self.model, rows).log_probs
        parts = differences(token_rows(batch.log_probs, mask), own, mask)
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
        return {"pass": self.pass_of(self.state.global_step - 1), **self.rollouts.summary, **self.meter.summary(sums)}

    def spent(self) -> dict[str, float]:
        spent = dict(self.rollouts.seconds)
        self.rollouts.seconds = dict.fromkeys(spent, 0.0)
        return spent

    def position(self) -> tuple[dict[str, Any], list[Rows]]:
        steps, initial_entropy = self.kept_rollout()
        return {
            "steps": int(self.state.global_step),
            "initial_entropy": initial_entropy,
            "rollout_summary": self.rollouts.summary,
        }, steps

    def restore_position(self, counters: dict[str, Any], rows: list[Rows]) -> None:
        self.restore_rollout(rows, counters["initial_entropy"])
        self.rollouts.summary = counters["rollout_summary"]
        self.alerts.resume()
