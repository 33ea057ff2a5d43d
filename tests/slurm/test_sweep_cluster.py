"""Sweeps in a real Slurm: arrays whose jobs are requeued, lose their node and are stopped; each trial is done once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sweep_kills import SETTINGS, compare
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.core.yaml import dump
from rlvr_cli.sweeps.folder import SweepDir
from tests.slurm.cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
RESOURCES = {"slurm.partition": "low", "slurm.time": 30, "slurm.signal_before": 60, "slurm.cpus_per_task": 2}
METHODS = ("grpo", "lopti")


def rlvr(cluster: Cluster, folder: Path, *arguments: str, code: int = 0) -> str:
    """What `rlvr sweep` says, which must end with ``code``."""
    environment = {**cluster.environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rlvr_cli", "sweep", *arguments]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr + ended.stdout
    return ended.stdout + ended.stderr


def write(folder: Path, name: str, text: str = "", **settings: Any) -> SweepDir:
    """A sweep file ``name``.yaml of two methods by two seeds, and the folder that its sweep will have."""
    content = {"set": {**SETTINGS, **RESOURCES, **settings}, "methods": list(METHODS), "seeds": 2}
    (folder / f"{name}.yaml").write_text(dump(content) + text)
    return SweepDir(folder / "runs" / name)


def submit(cluster: Cluster, folder: Path, name: str, *arguments: str) -> dict[str, str]:
    """The job of each trial that was submitted."""
    said = json.loads(rlvr(cluster, folder, f"{name}.yaml", "--submit", "slurm", "--format=json", *arguments))
    jobs: dict[str, str] = {}
    for array in said["jobs"]:
        several = len(array["trials"]) > 1
        jobs |= {name: f"{array['job']}_{n}" if several else array["job"] for n, name in enumerate(array["trials"])}
    return jobs


def states(cluster: Cluster, folder: Path, name: str) -> dict[str, str]:
    said = json.loads(rlvr(cluster, folder, "status", name, "--format=json"))
    return {one["name"]: one["state"] for one in said["trials"]}


def steps(sweep: SweepDir, trial: str) -> int:
    path = sweep.path / trial / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def ends(sweep: SweepDir, trial: str) -> list[str]:
    """How the attempts at a trial ended."""
    return [row["outcome"] for row in read_jsonl(sweep.state_dir / trial / "attempts.jsonl") if row["event"] == "end"]


def log_of(sweep: SweepDir, job: str) -> str:
    return (sweep.state_dir / "slurm" / f"{job}_0_log.out").read_text()


@pytest.fixture(scope="module")
def folder(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `whole`: the same trials, by workers of this machine."""
    path = tmp_path_factory.mktemp("sweeps") / "with space and $HOME"
    path.mkdir()
    write(path, "whole")
    rlvr(cluster, path, "whole.yaml")
    return path


def test_an_array_whose_jobs_lose_their_node_and_are_preempted(cluster: Cluster, folder: Path) -> None:
    sweep = write(folder, "array", "eval: {samples: 0, problems: 4}\n")
    jobs = submit(cluster, folder, "array", "--workers", "2")
    assert list(jobs) == ["grpo-s0", "grpo-s1", "lopti-s0", "lopti-s1"]
    before = states(cluster, folder, "array")
    assert set(before.values()) <= {"queued", "running"} and list(before.values()).count("running") <= 2
    assert submit(cluster, folder, "array") == {}, "what waits was submitted again"
    said = rlvr(cluster, folder, "array.yaml", "--submit", "slurm", "train.rollouts=3", code=2)
    assert "was changed while the sweep runs/array is running" in said

    cluster.await_(lambda: steps(sweep, "lopti-s0") >= 2, "no step 2 of lopti-s0")
    with cluster.lost(cluster.job(jobs["lopti-s0"])["NodeList"]):
        cluster.await_(lambda: cluster.job(jobs["lopti-s0"])["JobState"] == "PENDING", "it was not requeued")
    # The last job, whose SLURM_JOB_ID is the number of the whole array.
    cluster.await_(lambda: steps(sweep, "lopti-s1") >= 2, "no step 2 of lopti-s1")
    node = f"--nodelist={cluster.job(jobs['lopti-s1'])['NodeList']}"
    cluster.say("sbatch", "--partition=high", "--cpus-per-task=2", node, "--output=/dev/null", "--wrap", "sleep 1")
    for job in jobs.values():
        assert cluster.await_end(job)["JobState"] == "COMPLETED", log_of(sweep, job)
    assert set(states(cluster, folder, "array").values()) == {"finished"}
    assert ends(sweep, "grpo-s0") == ["finished", "finished"], "trained and evaluated"
    assert ends(sweep, "lopti-s0") == ["lost", "finished", "finished"]
    assert ends(sweep, "lopti-s1") == ["interrupted", "finished", "finished"]
    for trial in jobs:
        manifest = json.loads((sweep.path / trial / "manifest.json").read_text())
        assert manifest["status"] == "finished" and list((sweep.path / trial / "eval").glob("*/metrics.json"))
    tally = compare(folder / "runs" / "whole", sweep.path, (0, 0))
    assert (tally.trials, tally.lost, tally.different) == (4, [], [])

    assert "nothing was submitted" in rlvr(cluster, folder, "array.yaml", "--submit", "slurm")
    assert "4 finished" in rlvr(cluster, folder, "array.yaml"), "workers of this machine found something to do"


def test_stopped_it_saves_and_is_submitted_again(cluster: Cluster, folder: Path) -> None:
    """The jobs that wait are taken out of the queue, those that run save; and the rest can be submitted again."""
    sweep = write(folder, "stopped", **{"train.rollouts": 40, "checkpoint.every": 1000})
    submit(cluster, folder, "stopped", "--workers", "1")
    cluster.await_(lambda: steps(sweep, "grpo-s0") >= 2, "no step 2 of grpo-s0")
    said = rlvr(cluster, folder, "stop", "stopped")
    assert f"continue with: rlvr sweep {folder}/stopped.yaml --submit slurm --workers 1".replace(
        " ", ""
    ) in said.replace("'", "").replace(" ", "")
    manifest = json.loads((sweep.path / "grpo-s0" / "manifest.json").read_text())
    assert manifest["status"] == "interrupted" and 0 < manifest["step"] == steps(sweep, "grpo-s0")
    assert states(cluster, folder, "stopped") == {
        "grpo-s0": "interrupted",
        "grpo-s1": "waiting",
        "lopti-s0": "waiting",
        "lopti-s1": "waiting",
    }
    again = submit(cluster, folder, "stopped")
    assert sorted(again) == ["grpo-s0", "grpo-s1", "lopti-s0", "lopti-s1"]
    rlvr(cluster, folder, "stop", "stopped")
    assert "is not running" in rlvr(cluster, folder, "stop", "stopped", code=2)


def test_a_trial_on_two_machines(cluster: Cluster, folder: Path) -> None:
    """Two processes, one on each node, asked to stop on the way: as two processes of one machine."""
    for name, machines in (("one", 1), ("two", 2)):
        sweep = write(folder, name, **{"launch.processes": 2, "slurm.nodes": machines})
        text = (folder / f"{name}.yaml").read_text()
        (folder / f"{name}.yaml").write_text(text.replace("seeds: 2", "seeds: 1").replace(", lopti", ""))
    rlvr(cluster, folder, "one.yaml")
    jobs = submit(cluster, folder, "two")
    cluster.await_(lambda: steps(sweep, "grpo") >= 2, "no step 2")
    cluster.say("scancel", "--signal=USR2", jobs["grpo"])
    assert cluster.await_end(jobs["grpo"])["JobState"] == "COMPLETED", log_of(sweep, jobs["grpo"])
    assert ends(sweep, "grpo") == ["interrupted", "finished"]
    tally = compare(folder / "runs" / "one", sweep.path, (0, 0))
    assert (tally.trials, tally.lost, tally.doubled, tally.different) == (1, [], [], [])


def test_jobs_and_workers_of_this_machine_share_a_sweep(cluster: Cluster, folder: Path) -> None:
    sweep = write(folder, "both")
    jobs = submit(cluster, folder, "both", "--workers", "1")
    assert len(jobs) == 4
    assert "4 finished" in rlvr(cluster, folder, "both.yaml")
    for job in jobs.values():
        assert cluster.await_end(job)["JobState"] == "COMPLETED"
    workers = {row["worker"] for trial in jobs for row in read_jsonl(sweep.state_dir / trial / "attempts.jsonl")[:1]}
    assert 0 in workers and len(workers) > 1, "one of them did all"
    tally = compare(folder / "runs" / "whole", sweep.path, (0, 0))
    assert (tally.trials, tally.lost, tally.doubled, tally.different) == (4, [], [], [])


def test_what_slurm_refuses_leaves_nothing_behind(cluster: Cluster, folder: Path) -> None:
    """Of two arrays the second is refused: the first leaves the queue."""
    sweep = write(folder, "refused")
    said = rlvr(cluster, folder, "refused.yaml", "--submit", "slurm", "slurm.partition=lowest", code=2)
    assert "invalid partition" in said and not sweep.path.exists()
    settings = {key: value for key, value in {**SETTINGS, **RESOURCES}.items() if key != "slurm.partition"}
    text = dump({"set": settings, "zip": {"slurm.partition": ["low", "lowest"], "run.seed": [0, 1]}})
    (folder / "refused.yaml").write_text(text)
    said = rlvr(cluster, folder, "refused.yaml", "--submit", "slurm", code=2)
    assert "invalid partition" in said and not sweep.path.exists()
    assert "refused" not in cluster.say("squeue", "--noheader", "--format=%j", "--states=PENDING,RUNNING")
