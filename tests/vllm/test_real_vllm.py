"""Trainings that sample with vLLM itself, on the lab's models; `make test-vllm VLLM_PYTHON=...` runs them.

VLLM_PYTHON is a Python that has vllm and what rlvr needs (docs/rollout-engines.md).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.core.files import read_jsonl
from rlvr_cli.training.metrics import MISMATCH
from tests.conftest import ROOT
from tests.vllm.wide_heads import same_function, wide_lab

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
PYTHON = os.environ.get("VLLM_PYTHON", "")
SHORT = ("train.rollouts=3", "rollout.prompts=8", "rollout.max_new_tokens=60", "optimizer.lr=3e-4", "run.threads=1")
COLOCATE = ("rollout.engine=vllm_colocate", "rollout.vllm.eager=true")
COUNTDOWN = ("task=countdown", "task.numbers={3: 1.0}", *COLOCATE, "checkpoint.every=1")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON:
        pytest.skip("VLLM_PYTHON names no Python with vllm")
    return wide_lab(tmp_path_factory.mktemp("models") / "wide")


@pytest.fixture(scope="session")
def countdown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON:
        pytest.skip("VLLM_PYTHON names no Python with vllm")
    return wide_lab(tmp_path_factory.mktemp("models") / "countdown", name="lab-countdown")


def command(folder: Path, *arguments: str, module: str = "rlvr_cli") -> list[str]:
    return [PYTHON, "-m", module, "train", f"run.dir={folder}", *SHORT, *arguments]


def environment() -> dict[str, str]:
    small = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **small, "PYTHONPATH": str(ROOT)}


def trained(folder: Path, name: str, *arguments: str) -> Path:
    """The folder of a run that must go well."""
    asked = command(folder, f"run.name={name}", *arguments)
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / name


def manifest(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return found


def sampled(run: Path) -> list[list[int]]:
    return [row["token_ids"] for path in sorted((run / "rollouts").iterdir()) for row in read_jsonl(path)]


def check_sampler(run: Path) -> None:
    for name in ("sampler_check", "sampler_check_after_update"):
        found = manifest(run)[name]
        assert found["matches"] and found["mean_difference"] < 1e-6 and found["max_difference"] < 1e-4
    assert " WARNING: the sampler" not in (run / "log.txt").read_text()


def test_the_wider_model_is_the_same_function(lab: Path) -> None:
    assert same_function(lab) < 1e-4


def test_the_sampler_check_and_a_resumed_run(lab: Path, tmp_path: Path) -> None:
    """Weights are renewed after each update, and a stopped run samples as an unbroken one."""
    asked = (f"model.name={lab}", *COLOCATE, "checkpoint.every=1")
    whole = trained(tmp_path, "whole", *asked)
    check_sampler(whole)
    trained(tmp_path, "stopped", *asked, "train.rollouts=2")
    resumed = [*command(tmp_path)[:4], "--resume", str(tmp_path / "stopped"), "train.rollouts=3"]
    done = subprocess.run(resumed, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sampled(tmp_path / "stopped") == sampled(whole)


def test_countdown_stopped_by_a_signal_is_the_unbroken_run(countdown: Path, tmp_path: Path) -> None:
    """The mismatch is small in every step, and after a stop the metrics are the same to the byte."""
    assert same_function(countdown, "lab-countdown") < 1e-4
    asked = (f"model.name={countdown}", *COUNTDOWN, "train.rollouts=5")
    whole = trained(tmp_path, "whole", *asked)
    check_sampler(whole)
    rows = list(read_jsonl(whole / "metrics.jsonl"))
    assert len(rows) == 5
    for row in rows:
        log_prob, kl, above, below = (row[name] for name in MISMATCH)
        assert 0 < log_prob < 1e-5 and 0 <= kl < 1e-9 and above == below == row["importance/capped"] == 0
        assert row["importance/weight"] == pytest.approx(1, abs=1e-5)
    broken = tmp_path / "broken"
    with (tmp_path / "output").open("w") as output:
        running = subprocess.Popen(
            command(tmp_path, "run.name=broken", *asked), env=environment(), stdout=output, stderr=output
        )
        while running.poll() is None and not (broken / "checkpoints" / "step-1").exists():
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 143, (tmp_path / "output").read_text()[-3000:]
    assert 1 <= len(list(read_jsonl(broken / "metrics.jsonl"))) < 5
    resumed = [*command(tmp_path)[:4], "--resume", str(broken)]
    done = subprocess.run(resumed, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (broken / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_vllm_kept_end_the_run(countdown: Path, tmp_path: Path, dtype: str) -> None:
    asked = command(
        tmp_path,
        "run.name=stale",
        f"model.name={countdown}",
        *COUNTDOWN,
        f"rollout.vllm.dtype={dtype}",
        module="tests.vllm.keeps_old_weights",
    )
    done = subprocess.run(asked, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "vLLM did not update its weights" in done.stdout + done.stderr
    # The first rollout's weights were taken.
    (row,) = read_jsonl(tmp_path / "stale" / "metrics.jsonl")
    assert 0 < row["mismatch/log_prob"] < {"float32": 1e-5, "bfloat16": 0.05}[dtype]


def test_adapters_are_merged_into_what_vllm_gets(lab: Path, tmp_path: Path) -> None:
    check_sampler(trained(tmp_path, "lora", f"model.name={lab}", "model.adapter=lora", *COLOCATE))


def test_an_evaluation(lab: Path, tmp_path: Path) -> None:
    """Greedy, the local engine's answers; sampled, within its interval, under random numbers of vLLM's own."""

    def evaluated(python: str, engine: str) -> dict[str, Any]:
        asked = ("--engine", engine, "--format=json", "--pass-at", "1", "eval.problems=60", "eval.samples=8")
        done = subprocess.run(
            [python, "-m", "rlvr_cli", "eval", str(lab), *asked, f"run.dir={tmp_path / engine}"],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout)["metrics"]
        return found

    theirs, ours = evaluated(PYTHON, "vllm"), evaluated(sys.executable, "local")
    assert theirs["greedy"] == ours["greedy"]
    assert ours["pass@1"]["low"] < theirs["pass@1"]["value"] < ours["pass@1"]["high"]
