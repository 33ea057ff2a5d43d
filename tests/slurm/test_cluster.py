"""Jobs in a real SLURM: preempted, run out of time, cancelled, on two machines; the numbers stay the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.seal import file_hash
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
RESOURCES = ["slurm.partition=low", "slurm.time=30", "slurm.signal_before=60", "slurm.cpus_per_task=2"]


@pytest.fixture(scope="module", autouse=True)
def submitit() -> None:
    pytest.importorskip("submitit", reason='submitit is not installed: pip install "rlvr[slurm]"')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A name that a careless script would break on."""
    path = tmp_path_factory.mktemp("runs") / "with space and 100%j"
    path.mkdir()
    return path


def rlvr(cluster: Cluster, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**cluster.environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlvr_cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def submit(cluster: Cluster, folder: Path, name: str, *overrides: str) -> tuple[RunDir, str]:
    arguments = [*OVERRIDES, *RESOURCES, f"run.name={name}", *overrides]
    said = rlvr(cluster, folder, "train", "--submit", "slurm", "--format=json", *arguments)
    assert said.returncode == 0, said.stderr
    return RunDir(folder / "runs" / name), str(json.loads(said.stdout)["job"])


def rows(run: RunDir) -> list[dict[str, Any]]:
    path = run.metrics_path
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def preempt(cluster: Cluster, run: RunDir, job: str, *, after: int, nodes: int = 1) -> None:
    """Once the run has made ``after`` steps, another job takes its machines."""
    log = run.path / f"slurm-{job}.out"
    cluster.await_(
        lambda: len(rows(run)) >= after or cluster.job(job)["JobState"] == "FAILED", f"{log} has no step {after}"
    )
    assert len(rows(run)) >= after, log.read_text()
    size = (
        ["--exclusive", f"--nodes={nodes}"] if nodes > 1 else ["--cpus-per-task=2", f"--nodelist={_node(cluster, job)}"]
    )
    cluster.say("sbatch", "--partition=high", *size, "--output=/dev/null", "--wrap", "sleep 1")


def _node(cluster: Cluster, job: str) -> str:
    return cluster.job(job)["NodeList"]


def assert_same(run: RunDir, whole: RunDir) -> None:
    assert run.metrics_path.read_bytes() == whole.metrics_path.read_bytes()
    ours, theirs = (valid_checkpoints(one.checkpoints_dir)[0] for one in (run, whole))
    assert ours.step == theirs.step == rows(run)[-1]["step"]
    assert file_hash(ours.path / "model.safetensors") == file_hash(theirs.path / "model.safetensors")


@pytest.fixture(scope="module")
def whole(cluster: Cluster, folder: Path) -> RunDir:
    ended = rlvr(cluster, folder, "train", *OVERRIDES, "run.name=whole")
    assert ended.returncode == 0, ended.stderr
    return RunDir(folder / "runs" / "whole")


def test_preempted_queued_again_and_finished_as_if_nothing_had_been(
    cluster: Cluster, folder: Path, whole: RunDir
) -> None:
    run, job = submit(cluster, folder, "preempted")
    assert run.read_manifest()["status"] in ("submitted", "running")
    preempt(cluster, run, job, after=7)
    ended = cluster.await_end(job)
    log = (run.path / f"slurm-{job}.out").read_text()
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log
    assert "saved, queued again" in log and f"resuming {run.path}" in log
    assert run.read_manifest()["status"] == "finished"
    assert sorted(path.name for path in (folder / "runs").iterdir()) == ["preempted", "whole"], "a second run"
    assert_same(run, whole)


def test_killed_without_a_word_and_queued_again(cluster: Cluster, folder: Path, whole: RunDir) -> None:
    """As when a machine is lost: the run goes on from its last checkpoint."""
    run, job = submit(cluster, folder, "killed")
    cluster.await_(lambda: len(rows(run)) >= 7, "no step 7")
    cluster.say("scancel", "--signal=KILL", "--full", job)
    cluster.await_(lambda: cluster.job(job)["JobState"] in ("FAILED", "CANCELLED", "COMPLETED"), "it lives on")
    cluster.say("scontrol", "requeue", job)
    ended = cluster.await_end(job)
    assert ended["JobState"] == "COMPLETED", (run.path / f"slurm-{job}.out").read_text()
    assert f"resuming {run.path} at step " in run.log_path.read_text()
    assert_same(run, whole)


def test_cancelled_saves_stays_cancelled_and_can_be_submitted_again(
    cluster: Cluster, folder: Path, whole: RunDir
) -> None:
    run, job = submit(cluster, folder, "cancelled")
    twice = rlvr(cluster, folder, "train", "--resume", str(run.path), "--submit", "slurm")
    assert twice.returncode == 2 and f"scancel {job}" in twice.stderr
    cluster.await_(lambda: len(rows(run)) >= 6, "no step 6")
    cluster.say("scancel", job)
    ended = cluster.await_end(job)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    cluster.await_(lambda: run.read_manifest()["status"] == "interrupted", "it did not save")
    again = rlvr(cluster, folder, "train", "--resume", str(run.path), "--submit", "slurm", "--format=json")
    assert again.returncode == 0, again.stderr
    assert cluster.await_end(json.loads(again.stdout)["job"])["JobState"] == "COMPLETED"
    assert_same(run, whole)


def test_two_machines(cluster: Cluster, folder: Path) -> None:
    """Two processes, one on each node, preempted on the way: as two processes of one machine."""
    whole = RunDir(folder / "runs" / "whole-of-two")
    ended = rlvr(cluster, folder, "train", *OVERRIDES, "launch.processes=2", "run.name=whole-of-two")
    assert ended.returncode == 0, ended.stderr
    run, job = submit(cluster, folder, "two", "launch.processes=2", "slurm.nodes=2")
    preempt(cluster, run, job, after=7, nodes=2)
    ended_job = cluster.await_end(job)
    log = (run.path / f"slurm-{job}.out").read_text()
    assert (ended_job["JobState"], ended_job["Restarts"]) == ("COMPLETED", "1"), log
    assert_same(run, whole)


def test_what_slurm_refuses_leaves_nothing_behind(cluster: Cluster, folder: Path) -> None:
    said = rlvr(cluster, folder, "train", "--submit", "slurm", "slurm.partition=lowest", "run.name=refused")
    assert said.returncode == 2 and "invalid partition" in said.stderr
    assert not (folder / "runs" / "refused").exists()
