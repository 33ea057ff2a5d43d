"""Twelve small runs of the lab, made once for a session of tests and all its processes; who changes one copies it.

Each has two optimizer steps a pass on each of three rollouts of 16 completions; held-out evaluations are in ``grpo-0``.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr_cli.config.load import load_config
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.seal import file_digest
from rlvr_cli.training import run as running

SETTINGS = (
    *("train.rollouts=3", "rollout.prompts=4", "rollout.group_size=4", "rollout.max_new_tokens=24"),
    *("update.mini_batches=2", "checkpoint.every=100", "task.train_size=32", "optimizer.lr=1e-3", "run.threads=1"),
)
EVALUATED = ("validation.every=1", "validation.problems=6", "validation.samples=2", "validation.pass_at=[1,2]")
LORA = ("model.adapter.kind=lora", "model.adapter.rank=4", "optimizer.lr=5e-3")
# The method and the settings of each run. All kinds of state that a resume restores are among them: passes and their
# thresholds, a value head, the initial entropy, statistics, noise, a reference, adapters, an order of demonstrations.
RUNS: dict[str, tuple[str, ...]] = {
    "grpo-0": ("grpo", "method.kl.beta=0.1", *EVALUATED),
    "grpo-1": ("grpo", "method.kl.beta=0.1", "run.seed=1", *EVALUATED),
    "dgpo-0": ("dgpo", *EVALUATED),
    "dgpo-1": ("dgpo", "run.seed=1", *EVALUATED),
    "lopti": ("reweight+lopti",),
    "quantile": ("lopti", "method.passes.rule=quantile"),
    "ppo": ("ppo", "method.critic.lr_ratio=100.0"),
    "gtpo": ("gtpo",),
    "acpo": ("acpo",),
    "noise": ("reinforce-pp+noise", "rollout.dynamic_sampling=2", "rollout.drop_truncated=true"),
    "lora": ("grpo+lopti", "method.kl.beta=0.05", *LORA, *EVALUATED),
    "sft": ("sft", "method.demonstrations=20", "update.epochs=2", *EVALUATED, "rollout.max_new_tokens=144"),
}


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder ``name`` that ``make`` fills: in the first process of the session to ask, while others wait."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = base / name, base / f"{name}.done"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def start(folder: Path, name: str, of: str, *overrides: str) -> running.RunEnd:
    """Train the run ``of`` of the matrix as ``folder``/``name``."""
    method, *settings = RUNS[of]
    places = [f"run.dir={folder}", f"run.name={name}"]
    config = load_config(method=method, overrides=[*SETTINGS, *settings, *places, *overrides])
    return running.start_training(config, overwrite=False, console=Console(quiet=True))


def make_matrix(folder: Path) -> None:
    """Train all of them."""
    for name in RUNS:
        start(folder, name, name)


def resume(run: RunDir) -> running.RunEnd:
    return running.resume_training(run, console=Console(quiet=True))


def metrics(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics_path.read_text().splitlines()]


def newest(run: RunDir) -> Path:
    return valid_checkpoints(run.checkpoints_dir)[0].path


def contents(run: RunDir) -> tuple[bytes, dict[str, str]]:
    """Metrics, and the hashes of rollouts and of all tensors that training changed in the last checkpoint."""
    files = [*newest(run).rglob("*.safetensors"), *run.rollouts_dir.iterdir()]
    return run.metrics_path.read_bytes(), {path.name: file_digest(path) for path in sorted(files)}
