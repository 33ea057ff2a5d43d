"""Trainings finish on a pretended GPU (device.cpp), whose tensors and generators don't mix with those of the CPU."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

SOURCE = Path(__file__).with_name("device.cpp")
SHORT = "train.rollouts=2 rollout.prompts=4 rollout.group_size=4"
COMMANDS = {
    "lopti": f"train --method lopti run.name=lopti {SHORT}",
    "lora": f"train --method grpo run.name=lora model.adapter=lora method.kl.beta=0.01 {SHORT}",
}
STEPS = {"lopti": 4, "lora": 2}


@pytest.fixture(scope="module")
def device() -> Path:
    """Compile the pretended device, once for a version of torch, of Python and of the source; skip where that fails."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("the pretended GPU needs g++ (on Debian and Ubuntu: apt install g++)")
    if torch.version.cuda is not None:
        pytest.skip("the pretended GPU takes the place that CUDA has in this torch; it needs torch's CPU build")
    home = Path(torch.__path__[0])
    key = hashlib.sha256(f"{torch.__version__} {home}".encode() + SOURCE.read_bytes()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"rlvr-pretended-gpu-{os.getuid()}-{key}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        options = [
            "-std=c++20",
            "-shared",
            "-fPIC",
            "-O1",
            f"-I{home}/include",
            f"-L{home}/lib",
            f"-Wl,-rpath,{home}/lib",
        ]
        command = [compiler, *options, str(SOURCE), "-o", str(made), "-lc10", "-ltorch_cpu"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            pytest.skip(f"the pretended GPU does not compile with torch {torch.__version__}: {' '.join(errors[:1])}")
        made.replace(library)
    return library


@pytest.fixture(scope="module")
def runs(device: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of the trainings of ``COMMANDS`` on the pretended GPU, and what was seen of their weights."""
    folder = tmp_path_factory.mktemp("pretended")
    line = [sys.executable, str(Path(__file__).with_name("pretended.py")), str(device), "seen.json", *COMMANDS.values()]
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    seen = json.loads((folder / "seen.json").read_text(encoding="utf-8"))
    return folder / "runs", dict(zip(COMMANDS, seen, strict=True))


def manifest(run: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    return made


@pytest.mark.parametrize("name", COMMANDS)
def test_a_training_finishes_on_a_pretended_gpu(runs: tuple[Path, dict[str, Any]], name: str) -> None:
    run = runs[0] / name
    assert manifest(run)["status"] == "finished" and manifest(run)["step"] == STEPS[name]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(metrics) == STEPS[name]
    assert all(0 < row["grad_norm"] < math.inf for row in metrics)


def test_what_is_trained_is_float32(runs: tuple[Path, dict[str, Any]]) -> None:
    run, seen = runs[0] / "lopti", runs[1]["lopti"]
    assert seen == {"trained": ["cuda:0 float32"], "frozen": [], "sampled": ["cuda:0 float32"]}
    assert manifest(run)["weights_dtype"] == "float32"
    (weights,) = run.glob(f"checkpoints/step-*{STEPS['lopti']}/model.safetensors")
    assert {tensor.dtype for tensor in load_file(weights).values()} == {torch.float32}


def test_the_base_of_an_adapter_is_bfloat16(runs: tuple[Path, dict[str, Any]]) -> None:
    """The frozen base, its merged copy and what samples it; the adapter is float32."""
    run, seen = runs[0] / "lora", runs[1]["lora"]
    assert seen == {"trained": ["cuda:0 float32"], "frozen": ["cuda:0 bfloat16"], "sampled": ["cuda:0 bfloat16"]}
    assert manifest(run)["weights_dtype"] == "bfloat16"
    (weights,) = run.glob("checkpoints/step-*2/adapter_model.safetensors")
    assert {tensor.dtype for tensor in load_file(weights).values()} == {torch.float32}
