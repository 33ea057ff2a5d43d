"""Trainings that sample with vLLM itself, on the lab's model; `make test-vllm VLLM_PYTHON=...` runs them.

VLLM_PYTHON is a Python that has vllm and, for vllm_colocate, what rlvr needs (docs/rollout-engines.md).
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

import psutil
import pytest

from rlvr_cli.core.files import read_jsonl
from tests.conftest import ROOT
from tests.vllm.wide_heads import same_function, wide_lab

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
PYTHON = os.environ.get("VLLM_PYTHON", "")
SHORT = ("train.rollouts=3", "rollout.prompts=8", "rollout.max_new_tokens=60", "optimizer.lr=3e-4", "run.threads=1")
SERVER = ("rollout.engine=vllm_server", f"rollout.vllm.python={PYTHON}", "rollout.vllm.eager=true")
COLOCATE = ("rollout.engine=vllm_colocate", "rollout.vllm.eager=true")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PYTHON:
        pytest.skip("VLLM_PYTHON names no Python with vllm")
    return wide_lab(tmp_path_factory.mktemp("models") / "wide")


def command(python: str, folder: Path, *arguments: str) -> list[str]:
    return [python, "-m", "rlvr_cli", "train", f"run.dir={folder}", *SHORT, *arguments]


def environment() -> dict[str, str]:
    small = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **small, "PYTHONPATH": str(ROOT)}


def trained(python: str, folder: Path, name: str, *arguments: str) -> Path:
    """The folder of a run that must go well."""
    asked = command(python, folder, f"run.name={name}", *arguments)
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


def left_over(word: str) -> list[int]:
    return [process.pid for process in psutil.process_iter() if word in " ".join(process.cmdline())]


def test_the_wider_model_is_the_same_function(lab: Path) -> None:
    assert same_function(lab) < 1e-4


def test_a_server_and_this_process_sample_the_same(lab: Path, tmp_path: Path) -> None:
    served = trained(sys.executable, tmp_path, "served", f"model.name={lab}", *SERVER)
    here = trained(PYTHON, tmp_path, "here", f"model.name={lab}", *COLOCATE)
    check_sampler(served)
    check_sampler(here)
    assert sampled(served) == sampled(here)
    assert not left_over("rlvr-weights-")


def test_adapters_and_two_processes(lab: Path, tmp_path: Path) -> None:
    alone = trained(sys.executable, tmp_path, "alone", f"model.name={lab}", "model.adapter=lora", *SERVER)
    two = trained(
        sys.executable, tmp_path, "two", f"model.name={lab}", "model.adapter=lora", "launch.processes=2", *SERVER
    )
    check_sampler(alone)
    check_sampler(two)
    first = 8 * 8
    assert sampled(two)[:first] == sampled(alone)[:first]


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


def test_nothing_is_left_of_a_trainer_that_is_killed(lab: Path, tmp_path: Path) -> None:
    asked = command(sys.executable, tmp_path, "run.name=run", f"model.name={lab}", *SERVER, "train.rollouts=1000")
    trainer = subprocess.Popen(asked, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((tmp_path / "run" / "rollouts").glob("rollout-000001.jsonl")):
        assert trainer.poll() is None
        time.sleep(0.2)
    (keeper,) = [
        one for one in psutil.Process(trainer.pid).children() if "training.vllm.child" in " ".join(one.cmdline())
    ]
    started = [keeper, *keeper.children(recursive=True)]
    assert len(started) >= 3
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert not alive


def test_a_model_that_vllm_cannot_run_is_said(tmp_path: Path, lab: Path) -> None:
    """The lab's own heads are too narrow for vLLM's attention on CPUs."""
    done = subprocess.run(
        command(sys.executable, tmp_path, "run.name=run", *SERVER),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "the vLLM server has ended" in done.stderr and "head" in done.stderr and "vllm.log" in done.stderr
