"""What a sweep has in the queue of a cluster: the jobs that were submitted for it, how they stand, and their end."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import append_jsonl, read_jsonl, truncate_jsonl, write_text
from rlvr_cli.launch.slurm_script import stop_file
from rlvr_cli.runs.folder import now
from rlvr_cli.sweeps.folder import State, SweepDir
from rlvr_cli.sweeps.screen import TrialProgress

ASK_EVERY = 1.0
# What squeue says of a job that it has forgotten, and scancel of one that has just ended.
_UNKNOWN = "Invalid job id"
_ENDED = (_UNKNOWN, "already completing or completed", "Job/step already")


@dataclass(frozen=True)
class Submission:
    """An array, a line of `state/slurm.jsonl`: its task number i carries out ``trials[i]``; ``name`` is the job's."""

    job: str
    name: str
    trials: tuple[str, ...]


@dataclass(frozen=True)
class SlurmTask:
    """A task that SLURM has: `41_3`, and whether it waits or runs."""

    id: str
    state: Literal["queued", "running"]


def record(sweep: SweepDir, submission: Submission, script: str) -> None:
    """Keep what was submitted, and its script, in the sweep's folder; for who holds the sweep."""
    write_text(sweep.state_dir / f"slurm-{submission.job}.sh", script)
    path = _path(sweep)
    # What a killed submission left of a line would spoil the next.
    truncate_jsonl(path, len(read_jsonl(path)))
    append_jsonl(path, [{"time": now(), **asdict(submission)}], durable=True)


def submissions(sweep: SweepDir) -> list[Submission]:
    """All that was ever submitted, oldest first. Raises RunError for a line that was altered."""
    found = []
    for number, row in enumerate(read_jsonl(_path(sweep)), start=1):
        try:
            found.append(Submission(str(row["job"]), str(row["name"]), tuple(row["trials"])))
        except (KeyError, TypeError) as error:
            raise RunError(f"{_path(sweep)}:{number}: has no {error}. The file was altered.") from error
    return found


def _path(sweep: SweepDir) -> Path:
    return sweep.state_dir / "slurm.jsonl"


def in_queue(sweep: SweepDir) -> dict[str, SlurmTask]:
    """The tasks that wait or run, by the names of their trials. Raises UserError where SLURM cannot be asked."""
    known = submissions(sweep)
    if not known:
        return {}
    jobs = ",".join(one.job for one in known)
    trials = {f"{one.job}_{number}": trial for one in known for number, trial in enumerate(one.trials)}
    if shutil.which("squeue") is None:
        raise UserError(
            f"squeue is not on the PATH, so the state of the jobs {jobs} is unknown here. Run this on a machine of "
            "the cluster."
        )
    # Numbers begin again when a cluster does; the name tells another cluster's job apart.
    names = ",".join({one.name for one in known})
    asked = ["squeue", "--noheader", "--array", f"--jobs={jobs}", f"--name={names}", "--format=%i %t"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    if answer.returncode != 0 and _UNKNOWN not in answer.stderr:
        raise UserError(f"SLURM did not answer about the jobs {jobs}: {_words(answer)}")
    found = {}
    for line in answer.stdout.splitlines():
        task, state = line.split()
        if task in trials:
            found[trials[task]] = SlurmTask(task, "queued" if state == "PD" else "running")
    return found


def with_queue(progress: Sequence[TrialProgress], tasks: Mapping[str, SlurmTask]) -> list[TrialProgress]:
    """How trials stand, with what the queue knows of those that nobody seems to work on.

    Where locks do not reach from one machine to the other, a trial that runs elsewhere looks as if it did not.
    """
    return [_with_task(one, tasks.get(one.status.entry.name)) for one in progress]


def _with_task(one: TrialProgress, task: SlurmTask | None) -> TrialProgress:
    if task is None or one.status.state not in ("waiting", "interrupted"):
        return one
    running: State = "evaluating" if one.status.trained else "running"
    return replace(one, status=replace(one.status, state=running if task.state == "running" else "queued"))


def cancel_jobs(sweep: SweepDir, tasks: Mapping[str, SlurmTask], end: float) -> None:
    """Take ``tasks`` out of the queue, those that run once they have saved.

    Args:
        end: when to give up waiting, of time.monotonic.
    Raises:
        UserError: SLURM cannot be asked, or refuses.
        RunError: not all have ended in time.
    """
    if not tasks:
        return
    if shutil.which("scancel") is None:
        raise UserError("scancel is not on the PATH. Stop the sweep from a machine of the cluster.")
    jobs = sorted({task.id.partition("_")[0] for task in tasks.values()}, key=int)
    for job in jobs:
        # Before the signal: a task that has saved must find it, and not queue again.
        write_text(stop_file(sweep.state_dir, job), "")
    _cancel("--state=PENDING", *jobs)
    # The script alone passes it on and waits for the save; a bare scancel kills after KillWait.
    _cancel("--state=RUNNING", "--signal=TERM", "--batch", *jobs)
    while left := {trial: task for trial, task in in_queue(sweep).items() if task.id.partition("_")[0] in jobs}:
        if time.monotonic() > end:
            raise RunError(f"{sweep.path}: is stopping, but has not saved yet: {', '.join(left)}.")
        if any(task.state == "queued" for task in left.values()):
            _cancel("--state=PENDING", *jobs)
        time.sleep(ASK_EVERY)


def cancel(jobs: Sequence[str]) -> None:
    """Take the jobs out of the queue, whatever they do."""
    if jobs:
        _cancel(*jobs)


def _cancel(*arguments: str) -> None:
    answer = subprocess.run(["scancel", *arguments], capture_output=True, text=True, check=False)
    wrong = [line for line in answer.stderr.splitlines() if line and not any(said in line for said in _ENDED)]
    if answer.returncode != 0 and wrong:
        raise UserError([f"SLURM refused to cancel: {line}" for line in wrong])


def _words(answer: subprocess.CompletedProcess[str]) -> str:
    said = " ".join(answer.stderr.split())
    return said or f"squeue ended with {answer.returncode}, without a word"
