"""Supervised fine-tuning of a run with TRL's SFTTrainer, on worked solutions.

Undocumented behaviour of TRL: ``compute_loss`` divides by ``num_items_in_batch``, which transformers counts over the
whole optimizer step and all processes if ``model_accepts_loss_kwargs`` is set; the forward pass with labels returns
``log_probs``, ``entropy``, ``is_top1`` and ``label_mask``; ``_metrics`` grows until it is cleared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl import SFTConfig, SFTTrainer

from rlvr_cli.config.batch import BatchArithmetic
from rlvr_cli.config.schema import Config
from rlvr_cli.models.adapter import peft_config
from rlvr_cli.training.curriculum import problem_order
from rlvr_cli.training.demonstrations import Demonstration, SFTMethod
from rlvr_cli.training.dropout import disable_dropouts, find_dropouts
from rlvr_cli.training.prepare import RunParts
from rlvr_cli.training.run_trainer import RunTrainer, run_arguments
from rlvr_cli.training.trl_arguments import COMMON_ARGUMENTS
from rlvr_cli.training.zero import propagate_nonfinite

IGNORED = -100
SUMS = ("tokens", "loss", "entropy", "correct")


def sft_config(**settings: Any) -> SFTConfig:
    """Return TRL's arguments with this project's defaults, for tokenized data that are never truncated."""
    return SFTConfig(
        **COMMON_ARGUMENTS,
        train_sampling_strategy="sequential",
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        average_tokens_across_devices=True,
        **settings,
    )


def training_order(lengths: Sequence[int], config: Config, batch: BatchArithmetic) -> list[int]:
    """Return the indices of the demonstrations in training order, by optimizer step.

    ``train.rollouts`` batches of prompts x group_size demonstrations, drawn without replacement until all are used, are
    each split into ``update.mini_batches`` steps and repeated ``update.epochs`` times. A step is sorted by length, so
    that rows of similar length share a micro-batch; its rows do not depend on the micro-batch.
    """
    drawn = problem_order(len(lengths), config.train.rollouts * batch.completions, config.run.seed)
    order: list[int] = []
    for first in range(0, len(drawn), batch.completions):
        rollout = drawn[first : first + batch.completions]
        steps = [rollout[start : start + batch.step_batch] for start in range(0, len(rollout), batch.step_batch)]
        order += [index for step in steps for index in sorted(step, key=lengths.__getitem__)] * config.update.epochs
    return order


def training_data(demonstrations: Sequence[Demonstration], order: Sequence[int]) -> Dataset:
    rows = {
        "input_ids": [[*row.prompt, *row.completion] for row in demonstrations],
        "labels": [[IGNORED] * len(row.prompt) + list(row.completion) for row in demonstrations],
    }
    return Dataset.from_dict(rows).select(order)


class StepTokenTrainer(SFTTrainer):
    """TRL's SFTTrainer with the loss averaged over the tokens of the whole optimizer step, and token sums.

    ``sums``: over this process's trained tokens since the last :meth:`take_sums`: number, negative log-likelihood,
    entropy of the prediction (nats), and number of top-1 tokens.
    """

    def __init__(self, model: Any, **arguments: Any) -> None:
        super().__init__(model, **arguments)
        # The loss is TRL's, not the model's, so any model supports dividing it by the step's tokens.
        self.model_accepts_loss_kwargs = True
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=self.args.device)
        self.model.register_forward_hook(self._add_sums)

    def _add_sums(self, model: Any, inputs: Any, outputs: Any) -> None:
        mask = getattr(outputs, "label_mask", None)
        if mask is None:
            return  # a forward pass of sampling
        terms = (mask, -outputs.log_probs, outputs.entropy, outputs.is_top1)
        self.sums += torch.stack([term.detach().sum(dtype=torch.float64) for term in terms])

    def take_sums(self) -> Tensor:
        """Return and reset ``sums``; discard TRL's metrics."""
        taken, self.sums = self.sums, torch.zeros_like(self.sums)
        self._metrics["train"].clear()
        return taken


class SFTRunTrainer(RunTrainer, StepTokenTrainer):
    def __init__(self, run_parts: RunParts) -> None:
        config, batch, prepared = run_parts.config, run_parts.config.batch, run_parts.prepared
        assert isinstance(prepared.method, SFTMethod)
        demonstrations = prepared.method.demonstrations
        order = training_order([len(row.prompt) + len(row.completion) for row in demonstrations], config, batch)
        args = sft_config(
            **run_arguments(run_parts),
            per_device_train_batch_size=batch.micro_batch,
            gradient_accumulation_steps=batch.micro_batches,
        )
        StepTokenTrainer.__init__(
            self,
            prepared.model,
            args=args,
            train_dataset=training_data(demonstrations, order),
            processing_class=prepared.tokenizer,
            peft_config=peft_config(config.model.adapter),
        )
        self.begin_run(run_parts)
        self.dropouts = [] if config.update.dropout else find_dropouts(self.model)

    def training_step(self, *arguments: Any, **named: Any) -> Tensor:
        self.executed.update(["nll"])
        with disable_dropouts(self.dropouts):
            loss: Tensor = super().training_step(*arguments, **named)
        return loss

    def compute_loss(self, *arguments: Any, **named: Any) -> Tensor:
        return propagate_nonfinite(super().compute_loss(*arguments, **named))

    def step_metrics(self) -> dict[str, Any]:
        tokens, *sums = self.accelerator.reduce(self.take_sums(), reduction="sum").tolist()
        loss, entropy, correct = (value / max(tokens, 1.0) for value in sums)
        values = {"loss": loss, "token_accuracy": correct, "entropy": entropy, "update_tokens": tokens}
        return {name: value if math.isfinite(value) else None for name, value in values.items()}
