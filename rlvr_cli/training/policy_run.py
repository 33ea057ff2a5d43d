"""The trainer of a run with a policy-gradient method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from trl import GRPOConfig

from rlvr_cli.config.schema import Config
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.launch.deepspeed_config import is_sharded
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.method import Method
from rlvr_cli.models.adapter import merge_adapters, peft_config
from rlvr_cli.models.libraries import remote_code_allowed
from rlvr_cli.training.alerts import TrainingAlerts
from rlvr_cli.training.curriculum import Curriculum, problem_order
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.packing import TensorRows, pad_values, row_order
from rlvr_cli.training.past_weights import PastWeights
from rlvr_cli.training.prepare import RunParts
from rlvr_cli.training.rollouts import RolloutBatch, RolloutSource
from rlvr_cli.training.run_trainer import RunTrainer, run_arguments
from rlvr_cli.training.sampler_check import (
    Precision,
    SamplerCheck,
    aggregate_check,
    log_prob_differences,
    stale_weights_warning,
)
from rlvr_cli.training.scoring import eval_mode
from rlvr_cli.training.trainer import PolicyTrainer
from rlvr_cli.training.trl_arguments import trl_config
from rlvr_cli.training.vllm_engine import VllmEngine
from rlvr_cli.training.vllm_server import VllmServer
from rlvr_cli.training.zero import propagate_nonfinite


class PolicyRunTrainer(RunTrainer, PolicyTrainer):
    rollouts: RolloutSource
    meter: StepMeter
    past_weights: PastWeights

    def __init__(self, run_parts: RunParts) -> None:
        config, prepared = run_parts.config, run_parts.prepared
        method = prepared.method
        assert isinstance(method, Method)
        args = _trl_arguments(run_parts)
        engine = prepared.engine
        assert engine is not None
        groups = [problem.subgroup for problem in prepared.problems] if prepared.task.by_subgroup else None
        seed, weight = config.run.seed, config.train.curriculum
        curriculum = None if weight == 1 else Curriculum(len(prepared.problems), weight, seed, groups)
        rollouts = RolloutSource(
            config,
            prepared.task,
            prepared.problems,
            prepared.tokenizer,
            engine,
            run_parts.run.rollouts_dir,
            gather=gather_object,
            main=args.process_index == 0,
            on_tokens=run_parts.reporter.add_sampled,
            curriculum=curriculum,
        )
        rows = config.train.rollouts * config.rollout.prompts
        order = problem_order(len(prepared.problems), rows, seed, groups)
        correction, exact = config.rollout.active_correction, _sampler_exact(config, prepared.model, bf16=args.bf16)
        PolicyTrainer.__init__(
            self,
            prepared.model,
            args=args,
            train_dataset=Dataset.from_dict({"problem": order}),
            processing_class=prepared.tokenizer,
            method=method,
            rollouts=rollouts,
            meter=StepMeter(method, run_parts.executed, importance=correction is not None, mismatch=not exact),
            group_size=config.rollout.group_size,
            correction=correction,
            micro_tokens=config.update.micro_tokens,
            micro_rows=config.batch.micro_batch,
            dropout=config.update.dropout,
            sampler_exact=exact,
            teacher=None if prepared.teacher is None else prepared.teacher.model,
            peft_config=peft_config(config.model.adapter),
        )
        self.begin_run(run_parts)
        rollouts.model, rollouts.weights = self.model, self._sampling_weights
        self.past_weights = PastWeights(self.model, config.rollout.behind)
        # With vLLM, the second rollout (also after a resume) is the first that shows whether weights are updated.
        self._last_check: SamplerCheck | None = None
        self._pending_checks = ["sampler_check", *["sampler_check_after_update"] * config.rollout.uses_vllm]
        self.alerts = self.recorder.alerts = TrainingAlerts(self)

    @contextmanager
    def _sampling_weights(self) -> Iterator[None]:
        """Gather this step's weights for the sampler, or send them to vLLM; a collective operation."""
        engine, step = self.rollouts.engine, int(self.state.global_step)
        if not isinstance(engine, (VllmEngine, VllmServer)):
            with self.past_weights.loaded(self.rollout_index), self.gather_parameters():
                yield
            return
        if engine.step != step:
            loaded = self.past_weights.loaded(self.rollout_index)
            with loaded, self.gather_parameters(), merge_adapters(self.model) as merged:
                engine.update_weights(merged, step)
            self.accelerator.wait_for_everyone()
        yield

    def on_updates_begin(self, rollout: int) -> None:
        self.skips.count += self.rollouts.unscored > 0
        self.skips.check()
        seed = stream_seed(self.config.run.seed, "update", rollout, self.accelerator.process_index)
        # As torch.manual_seed, which formats a stack trace for each absent device.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)

    def on_rollout_collected(self, batch: RolloutBatch, rows: TensorRows) -> None:
        """Check the sampler at a run's first rollout; with vLLM, at the first two rollouts of every start."""
        if not self._pending_checks or (self.rollout_index > 0 and not self.config.rollout.uses_vllm):
            return
        name = self._pending_checks.pop(0)
        mask = rows["completion_mask"]
        has_dropout = self.config.update.dropout or self.config.model.adapter.kind != "none"
        # Compared under the weights and the mode of the sampler.
        is_other = self.scoring.trust_sampler_log_probs or has_dropout or self.config.rollout.behind > 0
        log_probs = None if is_other else rows.get("old_log_probs")
        if log_probs is None:
            with self.past_weights.loaded(self.rollout_index), eval_mode(self.model):
                log_probs = self.forward.infer(self.model, rows).log_probs
        differences = log_prob_differences(pad_values(batch.log_probs, mask), log_probs, mask)
        check = aggregate_check(self.accelerator.gather(differences), self._precision())
        self.reporter.log(check.summary())
        stale = None if self._last_check is None else stale_weights_warning(self._last_check, check)
        self._last_check = check
        for warning in (None if check.matches else check.warning(), stale):
            if warning is not None:
                self.reporter.show(warning)
        if self.accelerator.is_main_process:
            self.run.update_manifest(**{name: check.record()})

    def on_initial_entropy_measured(self, nats: float) -> None:
        self.reporter.log(f"mean entropy before training: {nats:.4f} nats")
        if self.accelerator.is_main_process:
            self.run.update_manifest(initial_entropy=nats)

    def _precision(self) -> Precision:
        dtypes = {parameter.dtype for parameter in self.model.parameters() if parameter.is_floating_point()}
        half = self.args.bf16 or self.args.fp16 or self.config.model.adapter.kind == "qlora"
        rollout = self.config.rollout
        half = half or (rollout.uses_vllm and rollout.vllm.dtype == "bfloat16")
        return "bfloat16" if half or dtypes & {torch.bfloat16, torch.float16} else "float32"

    def _loss(self, *arguments: Any, **named: Any) -> torch.Tensor:
        return propagate_nonfinite(super()._loss(*arguments, **named))

    def row_order(self, rollout: int, rows: int) -> torch.Tensor:
        return row_order(self.config.run.seed, rollout, rows)

    def step_metrics(self) -> dict[str, Any]:
        sums = self.accelerator.reduce(self.meter.take_sums().to(self.args.device), reduction="sum").tolist()
        return {"pass": self.pass_of(self.state.global_step - 1), **self.rollouts.summary, **self.meter.summary(sums)}

    def _store_rollout(self, rollout: Rollout, advantages: torch.Tensor) -> None:
        super()._store_rollout(rollout, advantages)
        self.rollouts.summary |= self.rollout_metrics

    def take_seconds(self) -> dict[str, float]:
        seconds = dict(self.rollouts.seconds)
        self.rollouts.seconds = dict.fromkeys(seconds, 0.0)
        return seconds

    def position(self) -> tuple[dict[str, Any], list[TensorRows]]:
        steps, initial_entropy = self.rollout_state()
        adaptive = {"entropy_bonus": [self.entropy_coef, self._last_world_entropy]} if self.use_adaptive_entropy else {}
        return {
            "steps": int(self.state.global_step),
            "initial_entropy": initial_entropy,
            **adaptive,
            "rollout_summary": self.rollouts.summary,
            **({} if self.rollouts.curriculum is None else {"curriculum": self.rollouts.curriculum.state()}),
        }, steps

    def restore_position(self, counters: dict[str, Any], rows: list[TensorRows]) -> None:
        self.restore_rollout(rows, counters["initial_entropy"])
        if self.use_adaptive_entropy:
            self.entropy_coef, self._last_world_entropy = counters["entropy_bonus"]
        self.rollouts.summary = counters["rollout_summary"]
        if self.rollouts.curriculum is not None:
            self.rollouts.curriculum.restore(counters["curriculum"])
        self.alerts.resume()


def _trl_arguments(run_parts: RunParts) -> GRPOConfig:
    config, batch = run_parts.config, run_parts.config.batch
    return trl_config(
        **run_arguments(run_parts),
        per_device_train_batch_size=batch.share,
        steps_per_generation=config.update.mini_batches,
        num_iterations=config.update.epochs,
        # TRL requires at least two; group_size is the true size.
        num_generations=config.rollout.group_size if config.rollout.group_size > 1 else batch.completions,
        max_completion_length=config.rollout.max_new_tokens,
        temperature=config.rollout.temperature,
        top_p=config.rollout.top_p,
        top_k=config.rollout.top_k,
        min_p=config.rollout.min_p or None,
        repetition_penalty=config.rollout.repetition_penalty,
        mask_truncated_completions=config.rollout.drop_truncated,
        # Only for the reference of the KL term, which TRL loads by the policy's name.
        model_init_kwargs=_reference_options(config, run_parts.prepared.model.device),
    )


def _reference_options(config: Config, device: torch.device) -> dict[str, Any] | None:
    """Return TRL's options for loading the reference of the KL term on ``device``."""
    options: dict[str, Any] = {"trust_remote_code": True} if remote_code_allowed() else {}
    if config.model.revision:
        options["revision"] = config.model.revision
    # With an adapter the reference is the base model, already loaded.
    if config.method.needs_reference and config.model.adapter.kind == "none" and device.type == "cuda":
        # TRL would spread it over all visible GPUs.
        options["device_map"] = None if is_sharded(config.launch) else {"": str(device)}
    return options or None


def _sampler_exact(config: Config, model: Any, *, bf16: bool) -> bool:
    """Return whether the sampler's log-probs equal the trainer's: same weights, float32, no dropout."""
    dtypes = {parameter.dtype for parameter in model.parameters()}
    same_model = config.model.adapter.kind == "none" and not config.rollout.uses_vllm and not config.update.dropout
    return same_model and config.rollout.behind == 0 and not bf16 and dtypes == {torch.float32}
