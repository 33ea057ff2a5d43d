"""What a job asks for, what is checked before it is queued, and what it runs; no Slurm is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from submitit.helpers import DelayedSubmission

from rlvr_cli.config.launch import parse_time_limit
from rlvr_cli.config.load import load, load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import lock_folder, wait_for_release
from rlvr_cli.launch import slurm
from rlvr_cli.launch.command import PORTS
from rlvr_cli.launch.slurm_job import Job
from rlvr_cli.launch.slurm_state import find_last_job, has_ended, job_states
from rlvr_cli.runs.folder import RunDir

ROOT = Path(__file__).parents[2]
# In place of python -m rlvr_cli train: notes that it runs, then saves and ends with 143 on SIGTERM, or with $ENDS.
TRAINING = """#!/bin/bash
echo "$@" >> "$CALLS"
trap 'sleep "${SAVES:-0}" & wait $!; echo saved >> "$CALLS"; exit 143' TERM
env > "$CALLS.ready"
[ -n "$ENDS" ] && exit "$ENDS"
while :; do sleep 0.05; done
"""


def script(*overrides: str) -> str:
    section = load_config([], overrides=list(overrides)).slurm
    return slurm.render_script(slurm.submitit_parameters(section, "job"), Path("/runs/a b/job/slurm"))


def options(text: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    return {line.partition("=")[0]: line.partition("=")[2] for line in lines}


def test_what_is_asked_for() -> None:
    text = script(
        "slurm={partition: gpu, account: me, qos: low, time: 1-12:00:00, nodes: 2, gpus_per_node: 4, cpus_per_task: 32,"
        " memory: 200G, signal_before: 600, setup: [module load cuda], extra: {constraint: a100, exclusive: true,"
        " reservation: false}}",
        "launch.processes=8",
    )
    assert options(text) == {
        "job-name": "job",
        "output": "'/runs/a b/job/slurm/%j_0_log.out'",
        "open-mode": "append",
        "requeue": "",
        "signal": "USR2@600",
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
    assert "--cpus-per-task=32 --kill-on-bad-exit=0 --wait=600" in next(
        line for line in text.splitlines() if line.startswith("srun ")
    )
    assert text.index("module load cuda") < text.index("srun ")


class Started:
    """A job at work as Slurm starts it, with programs in place of Slurm's and of `rlvr train`."""

    def __init__(self, folder: Path, *, state: str = "RUNNING", save_seconds: float = 60, **environment: str) -> None:
        self.calls, self.requeues = folder / "calls", folder / "requeues"
        squeue = f"echo '7|{state}|None|job'"
        path = slurms_commands(folder / "bin", "", squeue, f'echo "$@" >> {self.requeues}')
        (folder / "training").write_text(TRAINING)
        (folder / "training").chmod(0o755)
        job = Job((str(folder / "training"), "--resume"), save_seconds)
        self.pickle = folder / "7_submitted.pkl"
        DelayedSubmission(job).dump(self.pickle)
        variables = {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NAME": "job",
            "SUBMITIT_EXECUTOR": "slurm",
            "CALLS": str(self.calls),
        }
        variables |= {"PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **environment}
        command = [sys.executable, "-m", "submitit.core._submit", str(folder)]
        self.process = subprocess.Popen(command, env={**os.environ, **variables}, start_new_session=True)

    def signal_once_it_trains(self, number: int) -> None:
        """To the whole process group, as Slurm signals a job's step."""
        while not self.calls.with_suffix(".ready").exists():
            assert self.process.poll() is None
            time.sleep(0.02)
        os.killpg(self.process.pid, number)

    def requeued(self) -> list[str]:
        return self.requeues.read_text().splitlines() if self.requeues.exists() else []


@pytest.mark.parametrize("number", [signal.SIGUSR2])
def test_asked_to_stop_it_saves_and_is_requeued_to_repeat_its_command(tmp_path: Path, number: int) -> None:
    """SIGTERM: preemption in a cluster that sends no other signal."""
    job = Started(tmp_path)
    job.signal_once_it_trains(number)
    job.process.wait(60)
    assert job.requeued() == ["requeue 7"]
    assert job.calls.read_text().startswith("--resume\nsaved\n")
    again = DelayedSubmission.load(job.pickle).function
    assert again == Job((str(tmp_path / "training"), "--resume"), 60)


def test_a_save_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    job = Started(tmp_path, save_seconds=1, SAVES="600")
    job.signal_once_it_trains(signal.SIGUSR2)
    job.process.wait(60)
    assert job.requeued() == ["requeue 7"] and job.calls.read_text() == "--resume\n"
    os.killpg(job.process.pid, signal.SIGKILL)


@pytest.mark.parametrize("code", [0, 2])
def test_any_other_end_is_the_jobs_end(tmp_path: Path, code: int) -> None:
    job = Started(tmp_path, ENDS=str(code))
    assert job.process.wait(60) == code
    assert job.requeued() == []


@pytest.mark.parametrize("nodes", [2])
def test_a_launcher_around_the_submitting_shell_is_not_the_jobs(tmp_path: Path, nodes: int) -> None:
    """Slurm hands the submitting shell's environment to the job."""
    machine = {"SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NODEID": "1", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}
    job = Started(tmp_path, NNODES="7", RANK="3", WORLD_SIZE="8", MASTER_ADDR="elsewhere", ENDS="0", **machine)
    assert job.process.wait(60) == 0
    lines = dict(line.partition("=")[::2] for line in job.calls.with_suffix(".ready").read_text().splitlines())
    names = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    machines = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": lines.get("MASTER_PORT")}
    assert nodes == 1 or int(machines["MASTER_PORT"] or 0) in PORTS
    assert {name: lines[name] for name in names if name in lines} == ({} if nodes == 1 else machines)


def test_started_again_it_waits_for_what_ran_before(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from rlvr_cli.core.files import lock_folder\n"
    code += "with lock_folder(Path(sys.argv[1]), ''): print('held', flush=True); time.sleep(2)"
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    assert not wait_for_release(tmp_path, 0)
    assert wait_for_release(tmp_path, 60)
    holder.communicate()
    with lock_folder(tmp_path, ""):
        pass


@pytest.mark.parametrize("accounts", [True, False])
def test_states_are_squeues_and_of_jobs_that_it_has_forgotten_saccts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accounts: bool
) -> None:
    queue = "41_0|RUNNING|None|a\n41_1|PENDING|Resources|a\n42|RUNNING|None|of another cluster"
    path = slurms_commands(tmp_path / "bin", "", f"echo '{queue}'")
    history = "echo 'accounting storage is disabled' >&2; exit 1"
    if accounts:
        history = "echo '41_2|COMPLETED|None|a'; echo '43|CANCELLED by 1000|None|a'"
    (tmp_path / "bin" / "sacct").write_text(f"#!/bin/bash\n{history}\n")
    (tmp_path / "bin" / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
    states = job_states({"41_0": "a", "41_1": "a", "41_2": "a", "42": "a", "43": "a"})
    forgotten = {"41_2": "COMPLETED", "43": "CANCELLED"} if accounts else {}
    assert states == {"41_0": "RUNNING", "41_1": "PENDING (Resources)"} | forgotten
    assert [has_ended(state) for state in states.values()] == [False, False, True, True][: len(states)]


@pytest.mark.parametrize(
    ("time_limit", "seconds"),
    [("30", 1800), ("30:15", 1815), ("1:30:00", 5400), ("2-0", 172800), ("2-12:30", 217800), ("UNLIMITED", None)],
)
def test_time_limits(time_limit: str, seconds: int | None) -> None:
    assert parse_time_limit(time_limit) == seconds
    assert load_config([], overrides=[f'slurm.time="{time_limit}"']).slurm.time == time_limit


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("slurm.time=1h", "must be a time limit"),
        ("slurm.extra={partition: a}", "the key slurm.partition"),
    ],
)
def test_bad_values_are_named(override: str, said: str) -> None:
    with pytest.raises(UserError, match=r"override slurm\.") as error:
        load_config([], overrides=[override])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["nodes: 2"], "launch.processes=1 (over all machines) must be a multiple of slurm.nodes=2"),
        (["gpus_per_node: 4"], "a process uses one GPU. Set slurm.gpus_per_node=1, or launch.processes=4"),
    ],
)
def test_resources_that_do_not_fit_are_named_with_their_line(tmp_path: Path, lines: list[str], said: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("slurm:\n" + "".join(f"  {line}\n" for line in lines))
    with pytest.raises(UserError) as error:
        slurm.check_slurm(load([file]))
    assert said in str(error.value) and f"{file}:2" in str(error.value)


def rlvr(folder: Path, *arguments: str, path: str = "", command: str = "train") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{path}:/usr/bin:/bin" if path else "/nonexistent"}
    words = [sys.executable, "-m", "rlvr_cli", command, *arguments]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_dry_run_needs_no_slurm_and_leaves_nothing(tmp_path: Path) -> None:
    said = rlvr(tmp_path, "--submit", "slurm", "--dry-run", "slurm.time=60", "run.name=one")
    assert said.returncode == 0, said.stderr
    assert options(said.stdout)["output"] == f"{tmp_path}/runs/one/slurm/%j_0_log.out"
    assert said.stdout.splitlines()[-1].endswith(f"-m rlvr_cli train --resume {tmp_path}/runs/one")
    assert list(tmp_path.iterdir()) == []


def test_submitting_needs_slurm(tmp_path: Path) -> None:
    said = rlvr(tmp_path, "--submit", "slurm", "run.name=one")
    assert said.returncode == 2 and "no sbatch, srun, scontrol, squeue on the PATH" in said.stderr
    other = rlvr(tmp_path, "--submit", "pbs", "run.name=one")
    assert other.returncode == 2 and "must be slurm" in other.stderr
    assert list(tmp_path.iterdir()) == []


def test_submission_makes_the_run_and_its_job_begins_it(tmp_path: Path) -> None:
    """With an sbatch of ours; then the job's own command, as SLURM would run it."""
    path = slurms_commands(tmp_path / "bin", "echo Submitted batch job 41")
    settings = ["run.name=one", "train.rollouts=1", "rollout.prompts=2", "rollout.max_new_tokens=10", "run.threads=1"]
    said = rlvr(tmp_path, "--submit", "slurm", "--format=json", *settings, path=path)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == {"run": "runs/one", "job": "41", "log": "runs/one/slurm/41_0_log.out"}
    run = RunDir(tmp_path / "runs" / "one")
    assert find_last_job(run.path) == "41"
    job = DelayedSubmission.load(run.path / "slurm" / "41_submitted.pkl").function
    assert job.command[1:] == ("-m", "rlvr_cli", "train", "--resume", str(run.path)) and job.run == run.path
    manifest = run.read_manifest()
    assert (manifest["status"], manifest["step"]) == ("submitted", 0)
    begun = rlvr(tmp_path, "--resume", str(run.path), path="/nonexistent")
    assert begun.returncode == 0, begun.stderr
    manifest = run.read_manifest()
    assert (manifest["status"], manifest["step"]) == ("finished", 1)
    assert manifest["method_fingerprint"] and "--submit slurm" in manifest["command"]


def slurms_commands(folder: Path, sbatch: str, squeue: str = "", scontrol: str = "") -> str:
    """A folder with programs in place of Slurm's."""
    for name, text in {"sbatch": sbatch, "squeue": squeue, "srun": "", "scontrol": scontrol}.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("sbatch", "squeue", "said"),
    [
        ("echo 'sbatch: error: invalid partition' >&2; exit 1", "", "invalid partition"),
        (
            "echo 'Submitted batch job 41'",
            "echo '40|PENDING|Resources|one'",
            "scancel 40",
        ),
    ],
)
def test_what_would_be_replaced_stays_until_the_job_is_queued(
    tmp_path: Path, sbatch: str, squeue: str, said: str
) -> None:
    run = tmp_path / "runs" / "one"
    (run / "slurm").mkdir(parents=True)
    (run / "slurm" / "40_submission.sh").write_text("")
    (run / "manifest.json").write_text('{"status": "finished"}')
    path = slurms_commands(tmp_path / "bin", sbatch, squeue)
    refused = rlvr(tmp_path, "--submit", "slurm", "--overwrite", "run.name=one", path=path)
    assert refused.returncode == 2 and said in refused.stderr, refused.stderr
    assert (run / "manifest.json").read_text() == '{"status": "finished"}'
    assert [path.name for path in run.parent.iterdir()] == ["one"]


def test_a_run_that_is_replaced_survives_a_kill_in_sbatch_until_the_new_one_is_in_its_place(tmp_path: Path) -> None:
    """What is left aside is gone with the next that makes the run."""
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text('{"status": "finished"}')
    path = slurms_commands(tmp_path / "bin", "kill -9 $(ps -o ppid= -p $$)")
    killed = rlvr(tmp_path, "--submit", "slurm", "--overwrite", "run.name=one", path=path)
    assert killed.returncode == -signal.SIGKILL and RunDir(run).read_manifest()["status"] == "submitted"
    assert len(list(run.parent.iterdir())) == 2
    path = slurms_commands(tmp_path / "bin", "echo Submitted batch job 41")
    said = rlvr(tmp_path, "--submit", "slurm", "--overwrite", "run.name=one", path=path)
    assert said.returncode == 0, said.stderr
    assert [path.name for path in run.parent.iterdir()] == ["one"] and find_last_job(run) == "41"
