"""The Slurm jobs of a sweep: record, query and cancel them."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import append_jsonl, read_jsonl, truncate_jsonl, write_text
from rlvr_cli.launch.slurm_state import has_ended, job_states
from rlvr_cli.runs.folder import now
from rlvr_cli.sweeps.folder import OPEN, State, SweepDir
from rlvr_cli.sweeps.progress import TrialProgress

POLL_SECONDS = 5.0
# scancel's error for a job that is starting or ending; attempts, one per second.
_BUSY, _ATTEMPTS = "try again later", 20
# scancel's errors for jobs that have already ended.
_ENDED = ("Invalid job id", "already completing or completed", "Job/step already")


@dataclass(frozen=True)
class TrialJob:
    """The last job of a trial: its id (`41_3`) and its Slurm state."""

    id: str
    state: str

    @property
    def array(self) -> str:
        return self.id.partition("_")[0]


def record_jobs(sweep: SweepDir, name: str, jobs: Mapping[str, str]) -> None:
    """Record the ids of submitted jobs by trial name; ``name``: of the jobs in the queue."""
    path = _jobs_path(sweep)
    # A killed process may have left an incomplete line.
    truncate_jsonl(path, len(read_jsonl(path)))
    append_jsonl(path, [{"time": now(), "name": name, "jobs": dict(jobs)}], durable=True)


def read_trial_jobs(sweep: SweepDir) -> dict[str, TrialJob]:
    """Return each trial's last job, without those that Slurm has purged. Raises UserError if Slurm does not respond."""
    jobs, names = dict[str, str](), dict[str, str]()
    for number, row in enumerate(read_jsonl(_jobs_path(sweep)), start=1):
        try:
            jobs |= row["jobs"]
            names |= dict.fromkeys(row["jobs"].values(), row["name"])
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{_jobs_path(sweep)}:{number}: cannot be read ({error}). The file was altered.") from error
    states = job_states(names)
    return {trial: TrialJob(job, states[job]) for trial, job in jobs.items() if job in states}


def queued_jobs(sweep: SweepDir) -> dict[str, TrialJob]:
    """Return the jobs of :func:`read_trial_jobs` that have not ended."""
    return {trial: job for trial, job in read_trial_jobs(sweep).items() if not has_ended(job.state)}


def visible_jobs(sweep: SweepDir) -> dict[str, TrialJob]:
    """Return :func:`queued_jobs`; empty if Slurm does not respond."""
    try:
        return queued_jobs(sweep)
    except UserError:
        return {}


def apply_job_states(progress: Sequence[TrialProgress], jobs: Mapping[str, TrialJob]) -> list[TrialProgress]:
    """Replace the state of each open trial by the state of its job in the queue.

    A trial that runs on another machine looks open here, since its lock is not visible.
    """
    updated = []
    for trial in progress:
        job = jobs.get(trial.status.entry.name)
        if job is not None and not has_ended(job.state) and trial.status.state in OPEN:
            running: State = "evaluating" if trial.status.trained else "running"
            state: State = "queued" if job.state.startswith("PENDING") else running
            trial = replace(trial, status=replace(trial.status, state=state))
        updated.append(trial)
    return updated


def stop_file(sweep: SweepDir, array: str) -> Path:
    """Return the file that prevents the jobs of an array from being requeued after they save."""
    return sweep.state_dir / f"slurm-{array}.stop"


def cancel_jobs(sweep: SweepDir, jobs: Mapping[str, TrialJob], deadline: float) -> None:
    """Cancel ``jobs``; running ones save first. Raises UserError, RunError past ``deadline`` (time.monotonic)."""
    arrays = sorted({job.array for job in jobs.values()}, key=int)
    for array in arrays:
        write_text(stop_file(sweep, array), "")
    if arrays:
        # As at a time limit; scancel without a signal kills after KillWait.
        cancel("--state=RUNNING", "--signal=USR2", *arrays)
    while arrays and (pending := [trial for trial, job in queued_jobs(sweep).items() if job.array in arrays]):
        if time.monotonic() > deadline:
            raise RunError(f"{sweep.path}: is stopping, but has not saved yet: {', '.join(pending)}.")
        cancel("--state=PENDING", *arrays)
        time.sleep(POLL_SECONDS)


def cancel(*arguments: str) -> None:
    """Call scancel. Raises UserError if it is missing or Slurm refuses, but not for jobs that have ended."""
    if shutil.which("scancel") is None:
        raise UserError("scancel is not on the PATH. Stop the sweep on a machine of the cluster.")
    for _ in range(_ATTEMPTS):
        result = subprocess.run(["scancel", *arguments], capture_output=True, text=True, check=False)
        if _BUSY not in result.stderr:
            break
        time.sleep(1)
    errors = [line for line in result.stderr.splitlines() if line and not any(text in line for text in _ENDED)]
    if result.returncode != 0 and errors:
        raise UserError([f"Slurm refused to cancel: {line}" for line in errors])


def _jobs_path(sweep: SweepDir) -> Path:
    return sweep.state_dir / "slurm.jsonl"
