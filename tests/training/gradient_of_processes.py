"""Run by test_gradient in each of several processes: train on scripted rollouts, keep rank 0's gradients."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from tests.training.harness import UPDATES, divided, load_base, method_of, train

folder, *names = sys.argv[1:]
for name in names:
    trainer = train(
        Path(folder), divided(method_of(name)), load_base(Path(folder)), micro_batch=2, updates=UPDATES, processes=2
    )
    assert trainer.accelerator.num_processes == 2
    if trainer.accelerator.is_main_process:
        torch.save(trainer.gradients, Path(folder) / f"{name}.pt")
trainer.accelerator.end_training()
# A gloo thread that is still alive when Python tears down aborts the process.
os._exit(0)
