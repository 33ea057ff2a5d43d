"""Run by test_gradient in each of several processes: train on scripted rollouts, keep rank 0's gradients."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.training.harness import grpo, tiny_model, train

folder = Path(sys.argv[1])
for aggregation in ("token_mean", "sequence_mean", "constant_length"):
    trainer = train(folder, grpo(aggregation, divide_by_std=True), tiny_model(), micro_batch=2, epochs=2, processes=2)
    assert trainer.accelerator.num_processes == 2
    if trainer.accelerator.is_main_process:
        torch.save(trainer.gradients, folder / f"{aggregation}.pt")
# A gloo thread that is still alive when Python ends aborts the process.
trainer.accelerator.end_training()
