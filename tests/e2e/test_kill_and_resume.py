"""kill -9 at random moments, resume, and compare with the run that nobody touched."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.sweep_kills import own_files
from rlvr_cli.runs.seal import file_digest

# Four updates on each rollout and a checkpoint every third step: most checkpoints lie in the middle of a buffer.
SETTINGS = [
    "train.rollouts=6",
    "rollout.prompts=4",
    "rollout.max_new_tokens=48",
    "update.mini_batches=4",
    "checkpoint.every=3",
    "task.train_size=64",
    "optimizer.lr=1e-3",
    "run.threads=1",
]
STEPS = 24
# As many steps from demonstrations; adapters, whose checkpoints hold what is trained alone.
SFT = [*SETTINGS, "--method", "sft", "model.adapter=lora", "model.adapter.rank=4", "method.demonstrations=64"]

Ending = tuple[str, bytes, list[tuple[str, str]]]


def start(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlvr_cli", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)


def finish(process: subprocess.Popen[bytes]) -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output.decode()
    return output.decode()


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after_a_step(process: subprocess.Popen[bytes], run: Path, rng: random.Random) -> bool:
    """Kill up to a fifth of a second after one more step was recorded."""
    before = lines(run / "metrics.jsonl")
    while process.poll() is None:
        if lines(run / "metrics.jsonl") > before:
            time.sleep(rng.uniform(0, 0.2))
            process.kill()
            return True
        time.sleep(0.001)
    return False


def kill_inside_a_save(process: subprocess.Popen[bytes], run: Path, rng: random.Random) -> bool:
    """Kill while a checkpoint is being written aside."""
    while process.poll() is None:
        if any((run / "checkpoints").glob(".step-*.new-*")):
            time.sleep(rng.uniform(0, 0.01))
            process.kill()
            return True
        time.sleep(0.0005)
    return False


def outcome(run: Path) -> Ending:
    rollouts = sorted((path.name, file_digest(path)) for path in (run / "rollouts").iterdir())
    # A checkpoint of adapters has the adapters alone.
    (weights,) = (run / "checkpoints" / f"step-{STEPS}").glob("*model.safetensors")
    return file_digest(weights), (run / "metrics.jsonl").read_bytes(), rollouts


def unbroken_run(folder: Path, settings: list[str]) -> Ending:
    finish(start(f"run.dir={folder}", "run.name=whole", *settings))
    assert lines(folder / "whole" / "metrics.jsonl") == STEPS
    return outcome(folder / "whole")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Ending:
    return unbroken_run(tmp_path_factory.mktemp("unbroken"), SETTINGS)


def survive(folder: Path, kills: int, expected: Ending, settings: list[str] = SETTINGS) -> None:
    """Break runs until ``kills`` kills were made, each resumed; every finished run must equal the unbroken one."""
    rng = random.Random(kills)
    made = number = 0
    while made < kills:
        number += 1
        run = folder / f"broken-{number}"
        process = start(f"run.dir={folder}", f"run.name={run.name}", *settings)
        while made < kills:
            # Every third kill is aimed at a save.
            killed = (kill_inside_a_save if made % 3 == 2 else kill_after_a_step)(process, run, rng)
            output, _ = process.communicate(timeout=300)
            assert killed or process.returncode == 0, output.decode()
            made += killed
            # A kill may come when everything is saved and only the last lines are still to be printed.
            if json.loads((run / "manifest.json").read_text())["status"] == "finished":
                break
            process = start("--resume", str(run))
        else:
            finish(process)
        assert outcome(run) == expected, f"{run.name}, after {made} kills"


@pytest.mark.slow
def test_three_kills(tmp_path: Path, unbroken: Ending) -> None:
    survive(tmp_path, 3, unbroken)


@pytest.mark.slow
def test_a_kill_in_the_second_pass_of_lopti(tmp_path: Path) -> None:
    """Low, low, high, high: killed once the first step of the high pass is recorded and saved, in the third rollout."""
    settings = [*SETTINGS, "update.mini_batches=2", "train.rollouts=4", "checkpoint.every=1"]
    finish(start("--method", "lopti", f"run.dir={tmp_path}", "run.name=whole", *settings))
    run = tmp_path / "broken"
    process = start("--method", "lopti", f"run.dir={tmp_path}", "run.name=broken", *settings)
    while not (run / "checkpoints" / "step-11").exists():
        assert process.poll() is None
        time.sleep(0.0005)
    process.kill()
    process.communicate(timeout=300)
    saved = max(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))
    output = finish(start("--resume", str(run)))
    assert f"at step {saved} of 16" in output
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[saved]["pass"] == "high", "the kill came too late to show anything"
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    weights = [path / "checkpoints" / "step-16" / "model.safetensors" for path in (run, tmp_path / "whole")]
    assert file_digest(weights[0]) == file_digest(weights[1])


@pytest.mark.slow
def test_two_kills_with_files_of_the_users_own(tmp_path: Path) -> None:
    """Rewards that import a file next to them; all files are gone when the runs go on."""
    base = own_files(tmp_path)
    chosen = ["--config", str(base), "--method", str(tmp_path / "power.py")]
    settings = [*(text for text in SETTINGS if not text.startswith("task.")), *chosen]
    expected = unbroken_run(tmp_path, settings)
    run = tmp_path / "broken"
    process = start(f"run.dir={tmp_path}", f"run.name={run.name}", *settings)
    rng = random.Random(0)
    for kill in (kill_after_a_step, kill_inside_a_save):
        assert kill(process, run, rng)
        process.communicate(timeout=300)
        for path in tmp_path.glob("*.py"):
            path.unlink()
        process = start("--resume", str(run))
    finish(process)
    assert outcome(run) == expected


@pytest.mark.slow
def test_two_kills_of_two_processes_with_earlier_weights(tmp_path: Path) -> None:
    settings = [*SETTINGS, "rollout.behind=2", "rollout.correction=sequence", "launch.processes=2"]
    survive(tmp_path, 2, unbroken_run(tmp_path, settings), settings)


@pytest.mark.slow
def test_three_kills_of_supervised_fine_tuning(tmp_path: Path) -> None:
    survive(tmp_path, 3, unbroken_run(tmp_path, SFT), SFT)


@pytest.mark.slow
def test_two_kills_with_a_curriculum(tmp_path: Path) -> None:
    """Few problems, each visited again and again; which ones depends on the verdicts on all earlier rollouts."""
    settings = [*SETTINGS, "task.train_size=12", "train.curriculum=0.2", "rollout.stop=</answer>"]
    expected = unbroken_run(tmp_path, settings)
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert any(row["curriculum/passed"] for row in rows), "otherwise this shows nothing"
    survive(tmp_path, 2, expected, settings)
