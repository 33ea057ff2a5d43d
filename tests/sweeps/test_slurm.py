"""`rlvr sweep --submit slurm` as far as it shows without a cluster: the jobs, refusals, what is submitted when."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from submitit.helpers import DelayedSubmission

from rlvr_cli.cli.app import run
from rlvr_cli.core.files import lock_folder
from rlvr_cli.sweeps.slurm_queue import record_jobs, stop_file
from rlvr_cli.sweeps.slurm_task import run_trial
from tests.slurm.test_job import options, slurms_commands
from tests.sweeps.test_prepare import begun

TEXT = "name: pair\nmethods: [grpo, lopti]\nseeds: 2\n"
NAMES = ["grpo-s0", "grpo-s1", "lopti-s0", "lopti-s1"]
JOBS = {name: f"41_{number}" for number, name in enumerate(NAMES)}
# An sbatch that counts its calls and keeps the scripts, and refuses the call that $REFUSES says.
SBATCH = """number=$(( $(ls "$PLACE" | grep -c '^script-') + 1 ))
[ "$number" = "$REFUSES" ] && { echo "sbatch: error: invalid partition specified: lowest" >&2; exit 1; }
cat "${@: -1}" > "$PLACE/script-$number"; echo "Submitted batch job 4$number\""""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs in place of Slurm's: what they get and say is in files of this folder."""
    place = tmp_path / "slurm"
    place.mkdir()
    path = slurms_commands(place / "bin", SBATCH, 'cat "$PLACE/queue" 2>/dev/null; exit 0')
    (place / "bin" / "scancel").write_text('#!/bin/bash\necho "$@" >> "$PLACE/cancelled"\n: > "$PLACE/queue"\n')
    (place / "bin" / "scancel").chmod(0o755)
    for name, value in {"PLACE": str(place), "REFUSES": "0", "PATH": f"{path}:{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return place


def write(folder: Path, text: str = TEXT) -> str:
    (folder / "pair.yaml").write_text(text)
    return str(folder / "pair.yaml")


def test_a_dry_run_prints_the_job_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    file = write(tmp_path, TEXT + "slots: {cores: 4, gpus: 2}\nset: {launch.processes: 2, slurm.partition: gpu}\n")
    assert run(["sweep", file, "--dry-run", "--submit", "slurm", "--workers", "3", "slurm.time=60"]) == 0
    table, script = capsys.readouterr().out.split("#!/bin/bash", 1)
    assert "lopti-s1  waiting" in table and "4 trials in runs/pair, 4 to do" in table
    found = options(script)
    assert found["output"] == f"{tmp_path}/runs/pair/state/slurm/%A_%a_0_log.out"
    assert (found["array"], found["job-name"], found["time"]) == ("0-3%3", "pair", "60")
    assert (found["partition"], found["gpus-per-node"], found["cpus-per-task"]) == ("gpu", "2", "4")
    jobs = [line.split()[-2:] for line in script.splitlines() if "rlvr_cli.sweeps.slurm_task" in line]
    assert jobs == [["runs/pair", name] for name in NAMES]
    assert [path.name for path in tmp_path.iterdir()] == ["pair.yaml"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("set: {slurm.nodes: 2}\n", "launch.processes=1 (over all machines) must be a multiple of slurm.nodes=2"),
        ("grid: {slurm.gpus_per_node: [4]}\n", "pair.yaml:4  slurm.gpus_per_node=4 for 1 process"),
        ("slots: {gpus: 2}\n", "slurm.gpus_per_node=2 for 1 process"),
        ("slots: {cores: 2}\nset: {slurm.cpus_per_task: 4}\n", "pair.yaml:5  slurm.cpus_per_task=4 and the sweep's"),
        ("set: {model.name: ./none}\n", "no such folder: ./none"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_submitted(
    cluster: Path, more: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(cluster.parent, TEXT + more)
    for how in ([], ["--dry-run"]):
        assert run(["sweep", file, "--submit", "slurm", *how]) == 2
        assert said in capsys.readouterr().err
    assert not (cluster.parent / "runs").exists() and not (cluster / "script-1").exists()


def test_only_what_waits_is_submitted_and_never_twice(
    cluster: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trial is finished, one has failed, one is in the queue, one waits."""
    folder = cluster.parent
    made, place, plan = begun(folder)
    for trial in (place.path / "grpo-s0", place.path / "lopti-s1"):
        (trial / "manifest.json").write_text(json.dumps({"status": "finished" if trial.name == "grpo-s0" else "x"}))
    place.record(plan.trials[1], "end", outcome="bad_input", reason="the data are bad")
    command = ["sweep", str(made.file.path), "--submit", "slurm", f"run.dir={folder}/runs"]
    assert run([*command, "--format=json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["jobs"] == [{"job": "41", "trials": ["lopti-s0", "lopti-s1"]}]
    assert options((cluster / "script-1").read_text())["array"] == "0-1%2"
    job = DelayedSubmission.load(place.state_dir / "slurm" / "41_1_submitted.pkl").function
    assert job.command[1:] == ("-m", "rlvr_cli.sweeps.slurm_task", str(place.path), "lopti-s1")

    (cluster / "queue").write_text("41_0|PENDING|Resources|pair\n41_1|RUNNING|None|pair\n9_1|PENDING|None|pair\n")
    assert run([*command, "--format=json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["jobs"] == [] and not (cluster / "script-2").exists()
    shown = [(one["name"], one["state"], one["job"]) for one in said["trials"]]
    assert shown == [
        ("grpo-s0", "finished", None),
        ("grpo-s1", "failed", None),
        ("lopti-s0", "queued", "41_0"),
        ("lopti-s1", "running", "41_1"),
    ]
    (cluster / "queue").write_text("41_0|PENDING|Resources|pair\n41_1|CANCELLED|None|pair\n")
    assert run(["sweep", "status", str(place.path)]) == 0
    shown_text = " ".join(capsys.readouterr().out.split())
    assert "in Slurm: lopti-s0 41_0" in shown_text
    assert "ended: lopti-s1's job 41_1 CANCELLED; continue with: rlvr sweep" in shown_text
    monkeypatch.setenv("REFUSES", "2")
    assert run(["sweep", "retry", str(place.path), "--submit", "slurm"]) == 2
    assert place.statuses(plan)[1].state == "failed", "a refused retry is undone, and may be repeated"
    monkeypatch.setenv("REFUSES", "0")
    capsys.readouterr()
    assert run(["sweep", "retry", str(place.path), "--submit", "slurm", "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == [{"job": "42", "trials": ["grpo-s1"]}]


def test_trials_that_ask_for_different_machines_are_arrays_of_their_own(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only one array after the other keeps the number of trials at a time."""
    text = "name: pair\nseeds: 2\nzip: {launch.processes: [1, 2], slurm.gpus_per_node: [1, 2]}\n"
    assert run(["sweep", write(cluster.parent, text), "--submit", "slurm", "--workers", "1"]) == 0
    assert "submitted 2 trials as the array 41" in capsys.readouterr().out
    found = [options((cluster / f"script-{number}").read_text()) for number in (1, 2)]
    assert [one["array"] for one in found] == ["0-1%1", "0-1%1"]
    assert [one["gpus-per-node"] for one in found] == ["1", "2"]
    assert [one.get("dependency") for one in found] == [None, "afterany:41"]
    assert not (cluster / "script-3").exists()


@pytest.mark.parametrize("refused", ["1", "2"])
def test_what_slurm_refuses_leaves_nothing_behind(
    cluster: Path, refused: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFUSES", refused)
    text = "name: pair\nzip: {launch.processes: [1, 2], slurm.gpus_per_node: [1, 2]}\n"
    assert run(["sweep", write(cluster.parent, text), "--submit", "slurm"]) == 2
    assert "sbatch: error: invalid partition specified: lowest" in capsys.readouterr().err
    assert not (cluster.parent / "runs" / "pair").exists()
    assert (cluster / "cancelled").exists() == (refused == "2")
    assert refused == "1" or (cluster / "cancelled").read_text() == "41\n"


def test_a_changed_file_is_refused_while_tasks_are_in_the_queue(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, place, _ = begun(cluster.parent)
    record_jobs(place, "pair", JOBS)
    (cluster / "queue").write_text("41_0|PENDING|Resources|pair\n")
    made.file.path.write_text(TEXT.replace("seeds: 2", "seeds: 3"))
    for how in ([], ["--submit", "slurm"]):
        assert run(["sweep", str(made.file.path), f"run.dir={cluster.parent}/runs", *how]) == 2
        assert "was changed while the sweep" in capsys.readouterr().err
    assert not (cluster / "script-1").exists()


def test_stop_saves_what_runs_and_cancels_what_waits(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, place, _ = begun(cluster.parent)
    record_jobs(place, "pair", JOBS)
    (cluster / "queue").write_text("41_0|RUNNING|None|pair\n41_1|PENDING|Resources|pair\n")
    assert run(["sweep", "stop", str(place.path)]) == 0
    cancelled = (cluster / "cancelled").read_text().splitlines()
    assert cancelled == ["--state=RUNNING --signal=USR2 41"]
    assert stop_file(place, "41").exists()
    assert run(["sweep", "stop", str(place.path)]) == 2 and "is not running" in capsys.readouterr().err


def test_a_task_leaves_alone_what_is_not_its_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, place, plan = begun(tmp_path)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "41")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    previous = signal.getsignal(signal.SIGTERM)
    try:
        assert run_trial(place, "none", [])[0] == 0
        with lock_folder(place.trial_dir(plan.trials[0]), ""):
            assert run_trial(place, "grpo-s0", []) == (0, "another worker runs it")
        (place.path / "grpo-s1" / "manifest.json").write_text('{"status": "finished"}')
        assert run_trial(place, "grpo-s1", []) == (0, "finished")
        place.record(plan.trials[2], "end", outcome="bad_input", reason="the data are bad")
        code, outcome = run_trial(place, "lopti-s0", [])
        assert code == 1 and "failed: the data are bad" in outcome
        stop_file(place, "41").write_text("")
        assert run_trial(place, "lopti-s1", []) == (0, "the sweep was stopped")
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert [path.name for path in place.state_dir.glob("*/attempts.jsonl")] == ["attempts.jsonl"]
