"""Put a trainer together: TRL's arguments from the configuration, data in the order of training."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import torch
from accelerate.utils import DistributedType, DynamoBackend
from transformers import PrinterCallback

from rlvr_cli.config.batch import BatchArithmetic
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.evaluation.evaluate import evaluate_with
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.launch.deepspeed_config import deepspeed_settings, is_sharded
from rlvr_cli.launch.stopping import StopRequest
from rlvr_cli.launch.world import world_of_group
from rlvr_cli.models.adapter import PATTERNS_OF_PARAMETERS, merged, peft_config
from rlvr_cli.models.architecture import parameters_of
from rlvr_cli.models.gpu import has_bfloat16
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.store.evaluation import Provenance
from rlvr_cli.tasks.sets import problems_name
from rlvr_cli.training.prepare import PreparedRun
from rlvr_cli.training.progress import Reporter
from rlvr_cli.training.recorder import Evaluate
from rlvr_cli.training.run_trainer import RunTrainer


def build_trainer(
    config: Config,
    batch: BatchArithmetic,
    run: RunDir,
    prepared: PreparedRun,
    executed: Counter[str],
    reporter: Reporter,
    stop: StopRequest,
) -> RunTrainer:
    """The trainer of ``run``, at its first step; it counts the terms of the method in ``executed``."""
    gpu, checkpointing = torch.cuda.is_available(), config.model.gradient_checkpointing
    bf16 = has_bfloat16()
    arguments = {
        "deepspeed": deepspeed_settings(config.launch),
        "output_dir": str(run.path),
        "use_cpu": not gpu and not is_sharded(config.launch),
        "bf16": bf16,
        "gradient_checkpointing": gpu if checkpointing == "auto" else checkpointing == "on",
        # Every weight has its part in every loss; looking for others costs a walk of the graph in each micro-batch.
        "ddp_find_unused_parameters": False,
        "seed": config.run.seed,
        "max_steps": batch.steps_total,
        "save_steps": config.checkpoint.every,  # read by no one but trainer_state.json
        "learning_rate": config.learning_rate.peak(lambda: parameters_of(prepared.model)),
        "adam_beta1": config.optimizer.betas[0],
        "adam_beta2": config.optimizer.betas[1],
        "adam_epsilon": config.optimizer.eps,
        "weight_decay": config.optimizer.weight_decay,
        "max_grad_norm": config.update.max_grad_norm,
    }
    of_every_run = {
        "config": config,
        "batch": batch,
        "run": run,
        "reporter": reporter,
        "stop": stop,
        "evaluate": held_out_evaluation(config, run, prepared),
        "executed": executed,
        "model": prepared.model,
        "processing_class": prepared.tokenizer,
        "base": prepared.base,
        "peft_config": peft_config(config.model.adapter),
    }
    warnings.filterwarnings("ignore", PATTERNS_OF_PARAMETERS)
    if is_sharded(config.launch):
        # DeepSpeed takes no other one of ours, and replaces it by its own for the CPU where it offloads.
        arguments["optim"] = "adamw_torch"
    trainer = prepared.trainer(arguments, of_every_run)
    trainer.remove_callback(PrinterCallback)
    _check_accelerate(trainer, config)
    return trainer


def _check_accelerate(trainer: RunTrainer, config: Config) -> None:
    """Raise RunError where accelerate made something else of the launch than was asked for."""
    accelerator, launch = trainer.accelerator, config.launch
    kinds = [DistributedType.MULTI_CPU, DistributedType.MULTI_GPU]
    if is_sharded(launch):
        kinds = [DistributedType.DEEPSPEED]
    elif launch.processes == 1:
        kinds.append(DistributedType.NO)
    if accelerator.num_processes != launch.processes or accelerator.distributed_type not in kinds:
        raise RunError(
            f"launch.processes={launch.processes} and launch.deepspeed={launch.deepspeed or 'null'} were requested, "
            f"but accelerate runs {accelerator.num_processes} as {accelerator.distributed_type.value}: its environment "
            "variables (ACCELERATE_..., RANK, WORLD_SIZE) say something else."
        )
    wanted = ("bf16" if trainer.args.bf16 else "no", DynamoBackend.NO.value)
    actual = (accelerator.mixed_precision, accelerator.state.dynamo_plugin.backend.value)
    if actual != wanted:
        raise RunError(
            f"accelerate computes with mixed precision {actual[0]} and compiler {actual[1].lower()}, and the run with "
            f"{wanted[0]} and none: ACCELERATE_MIXED_PRECISION or ACCELERATE_DYNAMO_BACKEND say so, which `accelerate "
            "launch` sets from its options and its file. Leave them out."
        )


def held_out_evaluation(config: Config, run: RunDir, prepared: PreparedRun) -> Evaluate | None:
    """Return a function from the number of rollouts done to the held-out metrics with intervals; None without
    `eval.every`.

    Generated problems are of the dev split: who watches these numbers chooses settings by them, and the test split is
    for what is reported in the end.
    Everything is kept under ``eval/in-training/rollout-N``; the random streams are those of `rlvr eval`, so an
    evaluation leaves no trace in training and repeats exactly after a resume.
    Every process calls it, with weights that are whole, and samples its share; rank 0 alone writes, and gets the means.
    """
    if config.eval.every == 0:
        return None
    split = "dev" if config.task.is_generated else config.eval.split
    from rlvr_cli.evaluation.sampling import LocalSampler

    settings = EvalSettings.from_config(config, split=split)
    problems = prepared.task.problems(split, settings.problems, settings.problems_seed)
    benchmark = problems_name(config.task.name, config.task.data)

    def evaluate_after(rollouts: int) -> dict[str, Any] | None:
        folder = run.held_out_dir / f"rollout-{rollouts:06d}"
        world = world_of_group()
        with merged(prepared.model) as model:
            sampler = LocalSampler(model, prepared.tokenizer, world=world)
            if not world.main:
                sampler.help(prepared.task, problems, settings)
                return None
            steps = (rollouts * config.batch.steps_per_rollout,)
            made = Provenance(f"rollout {rollouts}", config.model.name, benchmark, steps, rollouts)
            metrics: dict[str, Any] = evaluate_with(
                sampler, prepared.task, problems, settings, folder, provenance=made
            ).result["metrics"]
        return metrics

    return evaluate_after
