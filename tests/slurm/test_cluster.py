"""Jobs in a real Slurm: out of time, preempted, cancelled, on a lost or on two machines; the numbers stay the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.templates import files_of
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.seal import file_digest
from tests.slurm.cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
OVERRIDES = [
    "train.rollouts=6",
    "rollout.prompts=4",
    "rollout.max_new_tokens=40",
    "update.mini_batches=4",
    "checkpoint.every=5",
    "task.train_size=32",
    "optimizer.lr=1e-3",
    "run.threads=1",
]
SLOW = """

def slow(completions: list[str], **columns: Any) -> list[float]:
    import os, time

    time.sleep(2 if os.path.exists(os.environ.get("SLOW_WHILE_THERE_IS", "")) else 0)
    return [0.0] * len(completions)
"""
RESOURCES = ["slurm.partition=low", "slurm.time=30", "slurm.signal_before=60", "slurm.cpus_per_task=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A name that a careless script would break on."""
    path = tmp_path_factory.mktemp("runs") / "with space and $HOME"
    path.mkdir()
    return path


def rlvr(cluster: Cluster, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**cluster.environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlvr_cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def submit(cluster: Cluster, folder: Path, name: str, *overrides: str) -> tuple[RunDir, str]:
    arguments = [*RESOURCES, f"run.name={name}", *overrides]
    said = rlvr(cluster, folder, "train", "--submit", "slurm", "--format=json", *arguments)
    assert said.returncode == 0, said.stderr
    return RunDir(folder / "runs" / name), str(json.loads(said.stdout)["job"])


def rows(run: RunDir) -> list[dict[str, Any]]:
    path = run.metrics_path
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def log_of(run: RunDir, job: str) -> Path:
    return run.path / "slurm" / f"{job}_0_log.out"


def await_step(cluster: Cluster, run: RunDir, job: str, step: int) -> None:
    """Wait until the run has made ``step`` steps."""
    cluster.await_(
        lambda: len(rows(run)) >= step or cluster.job(job)["JobState"] == "FAILED", f"{run.path} has no step {step}"
    )
    assert len(rows(run)) >= step, log_of(run, job).read_text()


def assert_same(run: RunDir, whole: RunDir) -> None:
    assert run.metrics_path.read_bytes() == whole.metrics_path.read_bytes()
    ours, theirs = (valid_checkpoints(one.checkpoints_dir)[0] for one in (run, whole))
    assert ours.step == theirs.step == rows(run)[-1]["step"]
    assert file_digest(ours.path / "model.safetensors") == file_digest(theirs.path / "model.safetensors")


@pytest.fixture(scope="module")
def whole(cluster: Cluster, folder: Path) -> RunDir:
    ended = rlvr(cluster, folder, "train", *OVERRIDES, "run.name=whole")
    assert ended.returncode == 0, ended.stderr
    return RunDir(folder / "runs" / "whole")


def test_out_of_time_four_times_it_saves_and_finishes_as_if_it_had_never_been(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four stays of one minute, of which Slurm leaves 20 to 50 seconds before its signal."""
    for name, text in files_of("reward", "mine").items():
        (folder / name).write_text(text + (SLOW if name == "mine.py" else ""))
    settings = [text for text in OVERRIDES if not text.startswith("task")]
    settings += ["task.name=own", "task.data=mine.jsonl", "task.reward=[mine.py:accuracy, mine.py:slow]"]
    settings += ["train.rollouts=90", "rollout.prompts=2", "update.mini_batches=1"]
    assert rlvr(cluster, folder, "train", *settings, "run.name=in-time").returncode == 0
    slow = folder / "slow"
    slow.touch()
    monkeypatch.setitem(cluster.environment, "SLOW_WHILE_THERE_IS", str(slow))
    monkeypatch.setitem(cluster.environment, "SBATCH_TIMELIMIT", "1")
    run, job = submit(cluster, folder, "out-of-time", *settings, "slurm.signal_before=10")
    # Slurm looks at time limits every 30 seconds, and requeues after a look: a start 12 seconds later has 48.
    cluster.await_(lambda: int(cluster.hasten(job, 12)["Restarts"]) == 4, "it is not out of time")
    assert 0 < len(rows(run)) < 90
    slow.unlink()
    cluster.say("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    ended = cluster.await_end(job)
    log = log_of(run, job).read_text()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "4") and log.count(", requeued") == 4, log
    assert sum(path.name.startswith("out-of-time") for path in (folder / "runs").iterdir()) == 1, "a second run"
    assert_same(run, RunDir(folder / "runs" / "in-time"))


def test_preempted_it_saves_and_is_requeued(cluster: Cluster, folder: Path, whole: RunDir) -> None:
    run, job = submit(cluster, folder, "preempted", *OVERRIDES)
    assert run.read_manifest()["status"] in ("submitted", "running")
    await_step(cluster, run, job, 7)
    node = f"--nodelist={cluster.job(job)['NodeList']}"
    cluster.say("sbatch", "--partition=high", "--cpus-per-task=2", node, "--output=/dev/null", "--wrap", "sleep 1")
    ended = cluster.await_end(job)
    log = log_of(run, job).read_text()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log
    assert "saved, requeued" in log and f"resuming {run.path}" in log
    assert_same(run, whole)


def test_a_node_goes_down(cluster: Cluster, folder: Path, whole: RunDir) -> None:
    """Slurm requeues the job; the run continues on another node from its last checkpoint."""
    run, job = submit(cluster, folder, "lost", *OVERRIDES)
    await_step(cluster, run, job, 7)
    node = cluster.job(job)["NodeList"]
    with cluster.lost(node):
        ended = cluster.await_end(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log_of(run, job).read_text()
    assert ended["NodeList"] != node
    assert f"resuming {run.path} at step " in run.log_path.read_text()
    assert_same(run, whole)


def test_cancelled_it_saves_stays_cancelled_and_can_be_submitted_again(
    cluster: Cluster, folder: Path, whole: RunDir
) -> None:
    run, job = submit(cluster, folder, "cancelled", *OVERRIDES)
    twice = rlvr(cluster, folder, "train", "--resume", str(run.path), "--submit", "slurm")
    assert twice.returncode == 2 and f"scancel {job}" in twice.stderr
    await_step(cluster, run, job, 6)
    assert "running, job" in rlvr(cluster, folder, "runs", "list").stdout
    cluster.say("scancel", job)
    ended = cluster.await_end(job)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    cluster.await_(lambda: run.read_manifest()["status"] == "interrupted", "it did not save")
    assert f"interrupted, job {job} CANCELLED" in rlvr(cluster, folder, "runs", "list").stdout
    hint = rlvr(cluster, folder, "runs", "show", "cancelled").stdout.splitlines()[-1].partition("rlvr ")[2]
    assert hint == "train --resume runs/cancelled --submit slurm"
    again = rlvr(cluster, folder, *hint.split(), "--format=json")
    assert again.returncode == 0, again.stderr
    assert cluster.await_end(json.loads(again.stdout)["job"])["JobState"] == "COMPLETED"
    assert_same(run, whole)


def test_two_machines(cluster: Cluster, folder: Path) -> None:
    """Two processes, one on each node, asked to stop by SIGTERM on the way: as two processes of one machine."""
    whole = RunDir(folder / "runs" / "whole-of-two")
    ended = rlvr(cluster, folder, "train", *OVERRIDES, "launch.processes=2", "run.name=whole-of-two")
    assert ended.returncode == 0, ended.stderr
    run, job = submit(cluster, folder, "two", *OVERRIDES, "launch.processes=2", "slurm.nodes=2")
    await_step(cluster, run, job, 7)
    cluster.say("scancel", "--signal=TERM", job)
    ended_job = cluster.await_end(job)
    assert (ended_job["JobState"], ended_job["Restarts"]) == ("COMPLETED", "1"), log_of(run, job).read_text()
    assert_same(run, whole)


def test_what_slurm_refuses_leaves_nothing_behind(cluster: Cluster, folder: Path) -> None:
    said = rlvr(cluster, folder, "train", "--submit", "slurm", "slurm.partition=lowest", "run.name=refused")
    assert said.returncode == 2 and "invalid partition" in said.stderr
    assert not (folder / "runs" / "refused").exists()
