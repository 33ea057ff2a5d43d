"""Run by test_correction: train with a correction in two processes, forked here; keep what rank 0 has."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from rlvr_cli.methods.correction import Correction
from tests.training.harness import UPDATES, load_base, method_of, train_corrected
from tests.training.test_correction import ACTIVE

child = os.fork()
os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if child else "1"
folder, kind = Path(sys.argv[1]), sys.argv[2]
correction: Correction = next(each for each in ACTIVE if each.kind == kind)
trainer = train_corrected(
    folder, method_of("grpo"), load_base(folder), correction, micro_batch=2, updates=UPDATES, processes=2
)
assert trainer.accelerator.num_processes == 2
if trainer.accelerator.is_main_process:
    rows = [
        {name: row[name] for name in row if name.startswith(("mismatch/", "importance/"))} for row in trainer.meter_rows
    ]
    torch.save({"gradients": trainer.gradients, "rows": rows}, folder / "together.pt")
trainer.accelerator.end_training()
# A gloo thread that is still alive when Python tears down aborts the process.
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
