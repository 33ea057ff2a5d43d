"""Put a trainer together: TRL's arguments from the configuration, data in the order of training."""

from __future__ import annotations

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PrinterCallback

from rlvr_cli.config.batch import BatchArithmetic
from rlvr_cli.config.schema import Config
from rlvr_cli.runs.directory import RunDir
from rlvr_cli.training.held_out import held_out_evaluation
from rlvr_cli.training.metrics import StepMeter
from rlvr_cli.training.prepare import Prepared
from rlvr_cli.training.progress import Reporter
from rlvr_cli.training.rollouts import RolloutSource
from rlvr_cli.training.schedule import problem_order
from rlvr_cli.training.stopping import StopRequest
from rlvr_cli.training.trainer import RunTrainer
from rlvr_cli.training.trl_arguments import trl_config


def build_trainer(
    config: Config,
    batch: BatchArithmetic,
    run: RunDir,
    prepared: Prepared,
    meter: StepMeter,
    reporter: Reporter,
    stop: StopRequest,
) -> RunTrainer:
    """The trainer of ``run``, at its first step."""
    gpu = torch.cuda.is_available()
    arguments = trl_config(
        output_dir=str(run.path),
        use_cpu=not gpu,
        bf16=gpu and torch.cuda.is_bf16_supported(),
        gradient_checkpointing=gpu,
        seed=config.run.seed,
        per_device_train_batch_size=batch.micro_batch,
        gradient_accumulation_steps=batch.micro_batches,
        steps_per_generation=batch.micro_batches * config.update.updates_per_rollout,
        num_iterations=config.update.epochs,
        # TRL wants at least two; the trainer is told the true size of a group.
        num_generations=config.rollout.group_size if config.rollout.group_size > 1 else batch.completions,
        max_completion_length=config.rollout.max_new_tokens,
        temperature=config.rollout.temperature,
        top_p=config.rollout.top_p,
        max_steps=batch.steps_total,
        save_steps=config.checkpoint.every,
        learning_rate=config.optimizer.lr,
        adam_beta1=config.optimizer.betas[0],
        adam_beta2=config.optimizer.betas[1],
        adam_epsilon=config.optimizer.eps,
        weight_decay=config.optimizer.weight_decay,
        max_grad_norm=config.update.max_grad_norm,
        mask_truncated_completions=config.rollout.drop_truncated,
        # Only read for the reference model of the KL term, which TRL loads by the policy's name.
        model_init_kwargs={"revision": config.model.revision} if config.model.revision else None,
    )
    rollouts = RolloutSource(
        config,
        prepared.task,
        prepared.problems,
        prepared.tokenizer,
        prepared.engine,
        run.rollouts_dir,
        gather=gather_object,
        main=arguments.process_index == 0,
        on_tokens=reporter.sampled,
    )
    rows = config.train.rollouts * config.rollout.prompts
    order = problem_order(len(prepared.problems), rows, config.run.seed)
    # TRL wants a text beside the index; prompts are written when a rollout needs them.
    dataset = Dataset.from_dict({"prompt": [""] * rows, "problem": order})
    trainer = RunTrainer(
        config=config,
        batch=batch,
        run=run,
        reporter=reporter,
        stop=stop,
        evaluate=held_out_evaluation(config, run, prepared),
        method=meter.method,
        group_size=config.rollout.group_size,
        rollouts=rollouts,
        meter=meter,
        executed=meter.executed,
        model=prepared.model,
        processing_class=prepared.tokenizer,
        args=arguments,
        train_dataset=dataset,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
