"""One run of the lab for the analyses of saved rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analyses.lab_runs import trained

SETTINGS = [
    "train.rollouts=3",
    "rollout.prompts=8",
    "rollout.max_new_tokens=48",
    "update.mini_batches=4",
    "checkpoint.every=4",
    "checkpoint.keep=9",
    "task.train_size=64",
    # Fast enough for ratios to leave the trust region.
    "optimizer.lr=1e-3",
    "validation.every=0",
    "run.threads=1",
]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run `lab`: three rollouts of four updates, a checkpoint after each rollout."""
    return trained(tmp_path_factory, SETTINGS)
