"""Supervised fine-tuning of a tiny model on scripted demonstrations; keeps the gradient of every optimizer step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from torch import Tensor

from experiments.lab.model import make_tokenizer
from rlvr_cli.config.load import load_config
from rlvr_cli.config.model import LoRAConfig, NoAdapterConfig
from rlvr_cli.models.adapter import peft_config
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.training.demonstrations import Demonstration
from rlvr_cli.training.sft import StepTokenTrainer, sft_config, training_data, training_order
from tests.training.harness import BeforeEachStep, load_base

UPDATES, EPOCHS, ROLLOUTS = 2, 2, 2
# Small: TRL computes the head in float32, and from step to step the runs to be compared drift apart by its rounding.
LEARNING_RATE = 0.01


class GradientTrainer(StepTokenTrainer):
    """Keeps the trained weights' gradient of every optimizer step, and the sums over its tokens."""

    def __init__(self, **arguments: Any) -> None:
        self.gradients: list[Tensor] = []
        self.steps: list[list[float]] = []
        self.losses: list[float] = []
        super().__init__(**arguments)
        self.add_callback(BeforeEachStep(self.see_gradient))

    def see_gradient(self) -> None:
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.gradients.append(torch.cat([weight.grad.flatten().clone() for weight in trained]))
        self.steps.append(self.accelerator.reduce(self.take_sums(), reduction="sum").tolist())
        self.losses.append(float(self.accelerator.reduce(self._tr_loss.double(), reduction="mean")))
        self._tr_loss = torch.zeros_like(self._tr_loss)


def demonstrations(count: int = 40) -> list[Demonstration]:
    """Random tokens with prompts and completions of many lengths; completions end with the end token."""
    generator = torch.Generator().manual_seed(0)

    def ids(longest: int) -> tuple[int, ...]:
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        return tuple(torch.randint(3, 20, (length,), generator=generator).tolist())

    return [Demonstration(ids(6), (*ids(11), 1)) for _ in range(count)]


def config_of(micro_batch: int | None = None, *overrides: str) -> Any:
    return load_config(
        method="sft",
        overrides=[
            f"train.rollouts={ROLLOUTS}",
            "rollout.prompts=4",
            "rollout.group_size=4",
            f"update.mini_batches={UPDATES}",
            f"update.epochs={EPOCHS}",
            *([f"update.micro_batch={micro_batch}"] if micro_batch else []),
            *overrides,
        ],
    )


def lora(rank: int | None) -> LoraConfig | None:
    return peft_config(NoAdapterConfig() if rank is None else LoRAConfig(rank=rank))


def train(folder: Path, *, micro_batch: int, rank: int | None = None) -> GradientTrainer:
    """Train to the end on steps of 8 rows with plain SGD."""
    config = config_of(micro_batch)
    batch, rows = config.batch, demonstrations()
    order = training_order([len(row.prompt) + len(row.completion) for row in rows], config, batch)
    trainer = GradientTrainer(
        model=load_base(folder),
        processing_class=make_tokenizer(compact.vocabulary()),
        train_dataset=training_data(rows, order),
        peft_config=lora(rank),
        args=sft_config(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            seed=0,
            optim="sgd",
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=1e9,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=batch.micro_batches,
            max_steps=batch.steps_total,
            save_steps=10**6,
        ),
    )
    trainer.train()
    return trainer
