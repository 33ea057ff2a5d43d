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
from safetensors.torch import load_file
from torch import Tensor

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
# Long enough to be interrupted, with a checkpoint after every step.
LONG = [*NARROW, "train.rollouts=200", "checkpoint.every=1"]


def start(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`rlvr train` with ``arguments``, its output and errors together."""
    return popen([sys.executable, "-m", "rlvr_cli", "train", *arguments], environment)


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


def manifest(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return content


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
