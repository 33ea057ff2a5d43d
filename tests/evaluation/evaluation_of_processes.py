"""Run by test_together: evaluate a model together in two processes, of one that has imported all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from accelerate import PartialState

from rlvr_cli.evaluation.evaluate import evaluate_with
from rlvr_cli.evaluation.sampling import LocalSampler
from rlvr_cli.launch.world import world_of_group
from rlvr_cli.models.load import load_model
from rlvr_cli.tasks.kk import KnightsAndKnaves
from tests.evaluation.test_together import PROBLEMS, SETTINGS

child = os.fork()
os.environ["RANK"] = os.environ["LOCAL_RANK"] = "0" if child else "1"
PartialState(cpu=True)
world = world_of_group()
model, tokenizer = load_model(sys.argv[1])
task = KnightsAndKnaves(style="compact")
problems = task.problems("test", PROBLEMS, 0)
sampler = LocalSampler(model, tokenizer, world=world)
for folder in sys.argv[2:]:
    if world.main:
        evaluate_with(sampler, task, problems, SETTINGS, Path(folder))
    else:
        sampler.fill(None, task, problems, SETTINGS)
assert world.processes == 2 and world.gather([world.rank]) == [0, 1]
# A gloo thread that is still alive when Python tears down aborts the process.
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
