"""The job's script and what is checked before it is handed over; no SLURM is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlvr_cli.config.launch import seconds_of
from rlvr_cli.config.load import load, load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import sole_writer
from rlvr_cli.launch import slurm
from rlvr_cli.launch.slurm_script import job_script
from rlvr_cli.runs.folder import RunDir

ROOT = Path(__file__).parents[2]
# Stands for python -m rlvr_cli train: says that it runs, then saves and ends with 143 on SIGTERM, or with $ENDS.
TRAINING = """#!/bin/bash
echo "$@" >> "$CALLS"
env > "$CALLS.environment"
trap 'sleep "${SAVES:-0}" & wait $!; exit 143' TERM
[ -n "$ENDS" ] && exit "$ENDS"
while :; do sleep 0.05; done
"""


def script(tmp_path: Path, *overrides: str, flags: tuple[str, ...] = ()) -> str:
    config = load_config([], overrides=["run.name=job", f"run.dir={tmp_path}/runs", *overrides])
    return job_script(config, tmp_path / "runs" / "job", tmp_path, flags)


def options(text: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    return {line.partition("=")[0]: line.partition("=")[2] for line in lines}


def test_what_is_asked_for(tmp_path: Path) -> None:
    text = script(
        tmp_path,
        "slurm={partition: gpu, account: me, qos: low, time: 1-12:00:00, nodes: 2, gpus_per_node: 4, cpus_per_task: 32,"
        " memory: 200G, signal_before: 600, setup: [module load cuda], extra: {constraint: a100, exclusive: true,"
        " reservation: false}}",
        "launch.processes=8",
        flags=("--trust-remote-code",),
    )
    assert options(text) == {
        "job-name": "job",
        "chdir": str(tmp_path),
        "output": f"{tmp_path}/runs/job/slurm-%j.out",
        "open-mode": "append",
        "requeue": "",
        "signal": "B:TERM@600",
        "nodes": "2",
        "ntasks-per-node": "1",
        "partition": "gpu",
        "account": "me",
        "qos": "low",
        "time": "1-12:00:00",
        "gpus-per-node": "4",
        "cpus-per-task": "32",
        "mem": "200G",
        "constraint": "a100",
        "exclusive": "",
    }
    assert text.count("train --trust-remote-code --resume") == 2
    assert "srun --relative=1 --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=32 --gpus-per-node=4" in text
    assert text.index("trap stop TERM") < text.index("module load cuda") < text.index("--resume")


def test_names_that_a_shell_would_read_otherwise(tmp_path: Path) -> None:
    config = load_config([], overrides=["run.name=job"])
    text = job_script(config, tmp_path / "a b%j'$HOME" / "job", tmp_path)
    assert "a b%%j" in options(text)["output"] and options(text)["output"].endswith("/job/slurm-%j.out'")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize("nodes", [1, 2])
def test_it_is_bash(tmp_path: Path, nodes: int) -> None:
    text = script(tmp_path, f"slurm.nodes={nodes}", f"launch.processes={nodes}")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


class Job:
    """The script at work, with programs of ours in place of SLURM's and of rlvr's."""

    def __init__(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, state: str = "R", **environment: str
    ) -> None:
        self.said, self.calls = tmp_path / "said", tmp_path / "calls"
        programs = {
            "squeue": f"#!/bin/bash\necho {state}\n",
            "scontrol": f'#!/bin/bash\necho "$@" >> {self.said}\n',
            "training": TRAINING,
        }
        (tmp_path / "bin").mkdir()
        for name, text in programs.items():
            (tmp_path / "bin" / name).write_text(text)
            (tmp_path / "bin" / name).chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "training"))
        text = script(tmp_path, "slurm.signal_before=16")
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash", "-c", text],
            env={**os.environ, "PATH": path, "SLURM_JOB_ID": "7", "CALLS": str(self.calls), **environment},
            start_new_session=True,
        )

    def await_training(self) -> None:
        end = time.monotonic() + 60
        while not self.calls.exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        time.sleep(0.3)

    def requeued(self) -> list[str]:
        return self.said.read_text().splitlines() if self.said.exists() else []


def test_asked_to_stop_it_saves_and_queues_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch)
    job.await_training()
    job.process.send_signal(signal.SIGTERM)
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(60) == 143
    assert job.requeued() == ["requeue 7"]
    assert job.calls.read_text() == f"-m rlvr_cli train --resume {tmp_path}/runs/job\n"
    time.sleep(6)  # as long as a save may take
    assert job.requeued() == ["requeue 7"], "a timer outlived the job"


def test_a_job_that_is_ending_already_is_left_to_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, state="CG")
    job.await_training()
    job.process.send_signal(signal.SIGTERM)
    assert job.process.wait(60) == 143
    assert job.requeued() == []


def test_a_save_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, monkeypatch, SAVES="600")
    job.await_training()
    job.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + 120
    while not job.requeued():
        assert time.monotonic() < end and job.process.poll() is None
        time.sleep(0.1)
    os.killpg(job.process.pid, signal.SIGKILL)
    job.process.wait()


@pytest.mark.parametrize("code", [0, 1, 2, 70])
def test_any_other_end_is_the_jobs_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    job = Job(tmp_path, monkeypatch, ENDS=str(code))
    assert job.process.wait(60) == code
    assert job.requeued() == []


def test_started_again_it_waits_for_what_ran_before(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from rlvr_cli.core.files import sole_writer\n"
    code += "with sole_writer(Path(sys.argv[1]), ''): print('held', flush=True); time.sleep(2)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    assert not slurm.await_release(tmp_path, seconds=0)
    assert slurm.await_release(tmp_path, seconds=60)
    holder.communicate()
    with sole_writer(tmp_path, ""):
        pass


@pytest.mark.parametrize(
    ("time_limit", "seconds"),
    [("30", 1800), ("30:15", 1815), ("1:30:00", 5400), ("2-0", 172800), ("2-12:30", 217800), ("UNLIMITED", None)],
)
def test_time_limits(time_limit: str, seconds: int | None) -> None:
    assert seconds_of(time_limit) == seconds
    assert load_config([], overrides=[f'slurm.time="{time_limit}"']).slurm.time == time_limit


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("slurm.time=1h", "must be a time limit"),
        ("slurm.time=0", "above zero"),
        ("slurm.memory=4 GB", "with K, M, G or T"),
        ("slurm.partition=a b", "without spaces"),
        ("slurm.extra={partition: a}", "the key slurm.partition"),
        ("slurm.extra={output: a}", "set by the run itself"),
        ("slurm.extra={--Constraint: a}", "not a long option"),
        ("slurm.signal_before=0", "at least 10"),
        ("slurm.setup=module load cuda", "a list of values"),
    ],
)
def test_bad_values_are_named(override: str, said: str) -> None:
    with pytest.raises(UserError, match=r"override slurm\.") as error:
        load_config([], overrides=[override])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["nodes: 2"], "slurm.nodes=2 cannot share launch.processes=1"),
        (["gpus_per_node: 4"], "would be idle. Set launch.processes=4"),
        (["time: 5"], "nothing is left to train in"),
    ],
)
def test_resources_that_do_not_fit_are_named_with_their_line(tmp_path: Path, lines: list[str], said: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("slurm:\n" + "".join(f"  {line}\n" for line in lines))
    with pytest.raises(UserError) as error:
        slurm.check_slurm(load([file]))
    assert said in str(error.value) and f"{file}:2" in str(error.value)


def test_more_processes_than_gpus() -> None:
    loaded = load([], overrides=["slurm.gpus_per_node=1", "launch.processes=2"])
    with pytest.raises(UserError, match="one process a GPU"):
        slurm.check_slurm(loaded)
    slurm.check_slurm(load([], overrides=["slurm.gpus_per_node=2", "launch.processes=2"]))
    slurm.check_slurm(load([]))


def rlvr(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{path}:/usr/bin:/bin" if path else "/nonexistent"}
    command = [sys.executable, "-m", "rlvr_cli", "train", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_dry_run_needs_no_slurm_and_leaves_nothing(tmp_path: Path) -> None:
    said = rlvr(tmp_path, "--submit", "slurm", "--dry-run", "slurm.time=60", "run.name=one")
    assert said.returncode == 0, said.stderr
    assert said.stdout == job_script(
        load_config([], overrides=["slurm.time=60", "run.name=one"]), tmp_path / "runs" / "one", tmp_path
    )
    assert "no sbatch, srun, scontrol, squeue on the PATH" in said.stderr
    assert list(tmp_path.iterdir()) == []


def test_submitting_needs_slurm(tmp_path: Path) -> None:
    said = rlvr(tmp_path, "--submit", "slurm", "run.name=one")
    assert said.returncode == 2 and "submit from a machine of the cluster" in said.stderr
    other = rlvr(tmp_path, "--submit", "pbs", "run.name=one")
    assert other.returncode == 2 and "slurm is" in other.stderr
    assert list(tmp_path.iterdir()) == []


def test_submission_makes_the_run_and_its_job_begins_it(tmp_path: Path) -> None:
    """With an sbatch of ours; then the job's own command, as SLURM would run it."""
    pytest.importorskip("submitit", reason="submitit is not installed")
    for name in ("sbatch", "srun", "scontrol", "squeue"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text('#!/bin/bash\n[ "${0##*/}" = sbatch ] && echo "Submitted batch job 41"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    settings = ["run.name=one", "train.rollouts=1", "rollout.prompts=2", "rollout.max_new_tokens=10", "run.threads=1"]
    said = rlvr(tmp_path, "--submit", "slurm", "--format=json", *settings, path=str(tmp_path / "bin"))
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == {"run": "runs/one", "job": "41", "log": "runs/one/slurm-41.out"}
    run = RunDir(tmp_path / "runs" / "one")
    assert slurm.job_of(run.path) == "41"
    kept = (run.path / "slurm" / "41_submission.sh").read_text()
    assert kept == job_script(load_config([run.config_path]), run.path, tmp_path)
    manifest = run.read_manifest()
    assert (manifest["status"], manifest["step"]) == ("submitted", 0)
    begun = rlvr(tmp_path, "--resume", str(run.path), path="/nonexistent")
    assert begun.returncode == 0, begun.stderr
    manifest = run.read_manifest()
    assert (manifest["status"], manifest["step"]) == ("finished", 1)
    assert manifest["method_fingerprint"] and "--submit slurm" in manifest["command"]


def slurms_commands(folder: Path, sbatch: str, squeue: str = "") -> str:
    """A folder with programs of ours in place of SLURM's."""
    for name, text in {"sbatch": sbatch, "squeue": squeue, "srun": "", "scontrol": ""}.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("sbatch", "squeue", "said"),
    [
        ("echo 'sbatch: error: invalid partition' >&2; exit 1", "exit 1", "invalid partition"),
        ("echo 'Submitted batch job 41'", "echo PD", "is job 40 (cancel it with: scancel 40)'s already"),
    ],
)
def test_what_would_be_replaced_stays_until_the_job_is_queued(
    tmp_path: Path, sbatch: str, squeue: str, said: str
) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed")
    run = tmp_path / "runs" / "one"
    (run / "slurm").mkdir(parents=True)
    (run / "slurm" / "40_submission.sh").write_text("")
    (run / "manifest.json").write_text('{"status": "finished"}')
    path = slurms_commands(tmp_path / "bin", sbatch, squeue)
    refused = rlvr(tmp_path, "--submit", "slurm", "--overwrite", "run.name=one", path=path)
    assert refused.returncode == 2 and said in refused.stderr, refused.stderr
    assert (run / "manifest.json").read_text() == '{"status": "finished"}'
    assert [path.name for path in run.parent.iterdir()] == ["one"]


def test_a_deepspeed_file_that_contradicts_is_told_before_the_job_waits(tmp_path: Path) -> None:
    (tmp_path / "deepspeed.json").write_text(json.dumps({"train_batch_size": 3, "zero_optimization": {"stage": 2}}))
    arguments = ("--submit", "slurm", "--dry-run", "--processes", "2", "launch.deepspeed=deepspeed.json")
    refused = rlvr(tmp_path, *arguments, "run.name=one")
    assert refused.returncode == 2 and "train_batch_size is 3 there" in refused.stderr


def test_a_launcher_around_the_submitting_shell_is_not_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM hands the submitting shell's environment to the job."""
    job = Job(tmp_path, monkeypatch, NNODES="2", MASTER_ADDR="elsewhere", ENDS="0")
    assert job.process.wait(60) == 0
    assert "NNODES" not in job.calls.with_suffix(".environment").read_text()


def test_a_job_submitted_from_a_job_has_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else srun finds two sizes of memory that exclude each other."""
    pytest.importorskip("submitit", reason="submitit is not installed")
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "100", "SLURM_CONF": "/etc/slurm.conf"}.items():
        monkeypatch.setenv(name, value)
    path = slurms_commands(tmp_path / "bin", f"env > {tmp_path}/environment; echo Submitted batch job 41", "exit 1")
    said = rlvr(tmp_path, "--submit", "slurm", "run.name=one", path=path)
    assert said.returncode == 0, said.stderr
    given = (tmp_path / "environment").read_text()
    assert "SLURM_CONF=" in given and "SLURM_JOB_ID" not in given and "SLURM_MEM_PER_CPU" not in given
