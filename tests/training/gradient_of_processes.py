"""Run by test_gradient: train on scripted rollouts in two processes, forked here; keep rank 0's gradients."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.training import harness
from tests.training.harness import UPDATES, GradientTrainer, divided, load_base, method_of, train


class InBuckets(GradientTrainer):
    """DDP's buckets are no second copy of the gradients."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.accelerator.ddp_handler.gradient_as_bucket_view = True

    def see_gradient(self) -> None:
        assert all(parameter.grad._is_view() for parameter in self.model.parameters())
        super().see_gradient()


harness.GradientTrainer = InBuckets  # type: ignore[misc]
child = os.fork()
os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if child else "1"
folder, *names = sys.argv[1:]
changes = Path(folder) / "overrides.json"
overrides = json.loads(changes.read_text()) if changes.exists() else []
for name in names:
    trainer = train(
        Path(folder),
        divided(method_of(name, *overrides)),
        load_base(Path(folder)),
        micro_batch=2,
        updates=UPDATES,
        processes=2,
    )
    assert trainer.accelerator.num_processes == 2
    if trainer.accelerator.is_main_process:
        torch.save(trainer.gradients, Path(folder) / f"{name}.pt")
trainer.accelerator.end_training()
# A gloo thread that is still alive when Python tears down aborts the process.
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
