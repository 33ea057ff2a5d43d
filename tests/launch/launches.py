"""`rlvr train` in several real processes on the lab, and what may happen to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file
from torch import Tensor

from rlvr_cli.models.source import PRESETS
from rlvr_cli.runs.checkpoints import valid_checkpoints

WORKER = "rlvr_cli.training.worker"
ROOT = Path(__file__).parents[2]
# Two rollouts of 16 completions, two updates on each: the second is off-policy.
NARROW = [
    "train.rollouts=2",
    "rollout.prompts=4",
    "rollout.group_size=4",
    "rollout.max_new_tokens=24",
    "update.mini_batches=2",
    "task.train_size=16",
    "optimizer.lr=1e-3",
    "run.threads=1",
]
# Small steps, since Adam makes the last digits of a gradient large where it is near 0; and every gradient is clipped.
SMALL = ["optimizer.lr=1e-4", "update.max_grad_norm=0.1"]
# Of a weight, between two ways to divide one run's processes.
SHARDED_LIMIT = 1e-5
SHIM = Path(__file__).parent / "cpu_shim"
# Long enough to be interrupted, with a checkpoint after every step.
LONG = [*NARROW, "train.rollouts=200", "rollout.prompts=2", "rollout.max_new_tokens=8", "checkpoint.every=1"]
LONG += ["train.on_no_signal=off"]


def start(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`rlvr train` with ``arguments``, its output and errors together."""
    return popen([sys.executable, "-m", "rlvr_cli", "train", *arguments], environment)


def sharded(*arguments: str) -> subprocess.Popen[str]:
    """`rlvr train` in two processes, which take the CPU for a GPU."""
    return start("--processes", "2", *arguments, environment={"PYTHONPATH": str(SHIM)})


def popen(command: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for the end, which must be with ``code``; what was printed."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    return output


def wait_for_steps(run: Path, steps: int, process: subprocess.Popen[str]) -> None:
    """Until ``steps`` steps are recorded."""
    path = run / "metrics.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < steps:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def ranks(process: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    """The training processes below ``process`` by their rank."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if WORKER in child.cmdline() and "RANK" in (environment := child.environ()):
                found[int(environment["RANK"])] = child
        except psutil.Error:
            continue
    return found


def kill_tree(process: subprocess.Popen[str]) -> None:
    """kill -9 of all of it."""
    everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in everyone:
        try:
            one.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.communicate()
    psutil.wait_procs(everyone, timeout=30)


def weights(run: Path) -> dict[str, Tensor]:
    """All tensors of the newest checkpoint, the value head's too."""
    folder = valid_checkpoints(run / "checkpoints")[0].path
    found = load_file(folder / "model.safetensors")
    for extra in ("value_head", "adapter"):
        if (folder / "trainer" / f"{extra}.safetensors").exists():
            found |= load_file(folder / "trainer" / f"{extra}.safetensors")
    return found


def difference(first: Path, second: Path) -> float:
    """The largest difference of a weight of two runs, as a share of its tensor's largest weight (1e-3 at least)."""
    one, other = weights(first), weights(second)
    assert one.keys() == other.keys()
    return max(float((one[key] - other[key]).abs().max() / one[key].abs().max().clamp(min=1e-3)) for key in one)


def trained(run: Path) -> dict[str, Tensor]:
    """What was trained: all weights with PPO's value head, or adapters."""
    adapter = valid_checkpoints(run / "checkpoints")[0].path / "adapter_model.safetensors"
    return load_file(adapter) if adapter.exists() else weights(run)


def assert_same_run(first: Path, second: Path) -> None:
    """Weights, rewards, evaluations and gradients of two runs of two processes each; and the first has learned."""
    ours, theirs, before = trained(first), trained(second), load_file(PRESETS["lab"] / "model.safetensors")
    moved = [float((ours[name] - before[name]).abs().max()) for name in before.keys() & ours.keys()]
    assert not moved or max(moved) > 10 * SHARDED_LIMIT
    assert theirs.keys() == ours.keys()
    assert max(float((ours[key] - theirs[key]).abs().max()) for key in ours) < SHARDED_LIMIT, second.name
    for one, other in zip(rows(first), rows(second), strict=True):
        for key in ("reward", "length", "eval"):
            assert one.get(key) == other.get(key)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


def manifest(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return content


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
