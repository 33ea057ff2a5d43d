"""Real sweeps on the lab, whose workers, trials and drivers are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.sweep_kills import SETTINGS, start, survive, workers, write_sweep
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.sweeps.folder import SweepDir
from rlvr_cli.sweeps.slurm_task import run_trial
from rlvr_cli.sweeps.worker import SweepWorker
from tests.commands import run_in
from tests.sweeps.test_prepare import begun


def wait_for(condition: Callable[[], Any], driver: subprocess.Popen[bytes], file: Path) -> Any:
    """What ``condition`` gives, once it is true."""
    while not (found := condition()):
        assert driver.poll() is None, file.with_suffix(".log").read_text()
        time.sleep(0.05)
    return found


def trial_of(driver: subprocess.Popen[bytes]) -> psutil.Process | None:
    """A trial that is being trained."""
    return next((child for worker in workers(driver) for child in worker.children()), None)


def finish(driver: subprocess.Popen[bytes], file: Path, code: int = 0) -> str:
    driver.wait(timeout=300)
    said = file.with_suffix(".log").read_text()
    assert driver.returncode == code, said
    return said


def attempts(sweep: SweepDir, name: str) -> list[str]:
    """How the attempts at a trial ended."""
    rows = read_jsonl(sweep.state_dir / name / "attempts.jsonl")
    return [row["outcome"] for row in rows if row["event"] == "end"]


def test_a_killed_trial_and_a_killed_worker(tmp_path: Path) -> None:
    """The trial goes on after both, from its checkpoint, and what is finished is not done again."""
    file = write_sweep(tmp_path / "s.yaml", tmp_path / "runs", ("grpo",), seeds=1)
    sweep = SweepDir(tmp_path / "runs" / "sweep")
    run = sweep.path / "grpo"
    driver = start(file)
    wait_for(lambda: trial_of(driver), driver, file).kill()
    wait_for(lambda: (run / "metrics.jsonl").exists(), driver, file)
    (worker,) = workers(driver)
    trial = worker.children()[0]
    worker.kill()
    psutil.wait_procs([trial], timeout=30)
    assert not trial.is_running(), "a trial outlived its worker"
    said = finish(driver, file)
    assert "worker 0 was killed by SIGKILL" in said and "1 finished" in said
    ended = ["failed", "lost", "finished"]
    assert attempts(sweep, "grpo") == ended
    assert "killed by SIGKILL" in read_jsonl(sweep.state_dir / "grpo" / "attempts.jsonl")[1]["reason"]
    assert [row["step"] for row in read_jsonl(run / "metrics.jsonl")] == [1, 2, 3, 4]

    before = (run / "manifest.json").read_bytes()
    (again,) = run_in(tmp_path, ("sweep", str(file)))
    assert again.code == 0 and (run / "manifest.json").read_bytes() == before and attempts(sweep, "grpo") == ended


def test_runs_of_one_seed_begin_with_the_same_samples(matrix: Path) -> None:
    """Whatever their method: problems, their order, and the sampling noise; later the problems."""
    folders = [matrix / name / "rollouts" for name in ("grpo-0", "lopti", "gtpo")]
    first, second = ([read_jsonl(folder / f"rollout-00000{rollout}.jsonl") for folder in folders] for rollout in (0, 1))
    assert all([row["completion"] for row in rows] == [row["completion"] for row in first[0]] for rows in first)
    assert all([row["problem"] for row in rows] == [row["problem"] for row in second[0]] for rows in second)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_kills_at_random_change_nothing(own: bool, tmp_path: Path) -> None:
    """Own: rewards that import a file next to them, rows, and a method of a file."""
    methods = ("grpo", "power.py") if own else ("grpo", "lopti")
    tally = survive(tmp_path, methods=methods, seeds=2, kills=4, count=2, own=own)
    assert (tally.trials, tally.lost, tally.doubled, tally.different) == (4, [], [], [])
    assert tally.worker_kills >= 2 and tally.driver_kills == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ctrl-c", "stop"])
def test_a_stopped_sweep_saves_and_continues(tmp_path: Path, how: str) -> None:
    file = write_sweep(tmp_path / "s.yaml", tmp_path / "runs", ("grpo", "lopti"), seeds=1)
    text = file.read_text().replace("train.rollouts: 2", "train.rollouts: 30")
    file.write_text(text.replace("checkpoint.every: 1", "checkpoint.every: 1000"))
    sweep = SweepDir(tmp_path / "runs" / "sweep")
    driver = start(file, "--workers", "2")
    runs = [sweep.path / name for name in ("grpo", "lopti")]
    wait_for(lambda: all((run / "metrics.jsonl").exists() for run in runs), driver, file)
    if how == "ctrl-c":
        driver.send_signal(signal.SIGINT)
        said = finish(driver, file, 130)
    else:
        command = [sys.executable, "-m", "rlvr_cli", "sweep", "stop", str(sweep.path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        assert "continue with: rlvr sweep" in done.stdout
        said = finish(driver, file, 143)
    assert f"saved; continue with: rlvr sweep {file}" in said
    for run in runs:
        manifest = json.loads((run / "manifest.json").read_text())
        assert manifest["status"] == "interrupted" and manifest["step"] > 0
        assert (run / "checkpoints" / f"step-{manifest['step']}").is_dir()
        assert attempts(sweep, run.name) == ["interrupted"]
    finish(start(file, "--workers", "2"), file)
    assert [attempts(sweep, run.name) for run in runs] == [["interrupted", "finished"]] * 2


@pytest.mark.parametrize("task", [False, True], ids=["a worker", "a job of Slurm"])
def test_exit_code_0_of_an_unfinished_training_is_a_failure(
    task: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried as often as `retries` says, and the other trials go on."""
    _, sweep, plan = begun(tmp_path, "name: pair\nmethods: [grpo, lopti]\nretries: 2\n")
    manifest = {"grpo": "running", "lopti": "finished"}
    tried: list[str] = []

    def program(worker: SweepWorker, arguments: list[str]) -> list[str]:
        """In place of a training: a process that leaves its manifest and says that all went well."""
        name = next(name for name in manifest if f"{sweep.path}/{name}" in arguments or f"run.name={name}" in arguments)
        tried.append(name)
        assert len(tried) < 10, "tried without end"
        sweep_run = sweep.path / name
        sweep_run.mkdir(exist_ok=True)
        (sweep_run / "manifest.json").write_text(json.dumps({"status": manifest[name]}))
        return [sys.executable, "-c", ""]

    monkeypatch.setattr(SweepWorker, "_program", program)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "41")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    before = signal.getsignal(signal.SIGTERM)
    try:
        if task:
            assert [run_trial(sweep, name, [])[0] for name in manifest] == [1, 0]
        else:
            for entry in plan.trials:
                SweepWorker(sweep, 0, []).run_trial(entry)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert tried == ["grpo"] * 3 + ["lopti"]
    assert attempts(sweep, "grpo") == ["failed"] * 3 and attempts(sweep, "lopti") == ["finished"]
    (status, other) = sweep.statuses(plan)
    assert (status.state, status.failures, other.state) == ("failed", 3, "finished")
    assert status.reason is not None and "exit code 0 at step 0 of" in status.reason


@pytest.mark.slow
def test_bad_input_of_a_trial_is_not_tried_again_unless_asked(tmp_path: Path) -> None:
    """A data file that cannot be read as problems shows only when the training begins."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"question": "what?"}\n')
    file = tmp_path / "s.yaml"
    settings = {**SETTINGS, "run.dir": str(tmp_path / "runs"), "task.data": str(data)}
    file.write_text(json.dumps({"name": "sweep", "set": settings, "methods": ["grpo"]}))
    sweep = SweepDir(tmp_path / "runs" / "sweep")
    said = finish(start(file), file, 1)
    assert attempts(sweep, "grpo") == ["bad_input"]
    assert "grpo failed:" in said and "data.jsonl" in said and f"rlvr sweep retry {sweep.path}" in said
    finish(start(file), file, 1)
    assert attempts(sweep, "grpo") == ["bad_input"]
    command = [sys.executable, "-m", "rlvr_cli", "sweep", "retry", str(sweep.path), "grpo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ}, check=False)
    assert done.returncode == 1 and attempts(sweep, "grpo") == ["bad_input", "bad_input"]
