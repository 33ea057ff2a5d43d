"""The jobs of a sweep in the queue of a cluster: what was submitted, its state, and its end."""

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
from rlvr_cli.sweeps.screen import TrialProgress

POLL_SECONDS = 5.0
# scancel's error for a job that is just starting or ending, and how often it is called then, a second apart.
_BUSY, TRIES = "try again later", 20
# scancel's errors for jobs that have ended meanwhile.
_ENDED = ("Invalid job id", "already completing or completed", "Job/step already")


@dataclass(frozen=True)
class TrialJob:
    """The job that was last submitted for a trial: `41_3`, and its state as Slurm names it."""

    id: str
    state: str

    @property
    def array(self) -> str:
        """The number of the whole array."""
        return self.id.partition("_")[0]


def record(sweep: SweepDir, name: str, jobs: Mapping[str, str]) -> None:
    """Record the numbers of submitted jobs by the names of their trials; ``name`` is the jobs' in the queue."""
    path = _path(sweep)
    # The line that a killed process began would spoil the next.
    truncate_jsonl(path, len(read_jsonl(path)))
    append_jsonl(path, [{"time": now(), "name": name, "jobs": dict(jobs)}], durable=True)


def trial_jobs(sweep: SweepDir) -> dict[str, TrialJob]:
    """Return the last job of each trial, by the trials' names, as far as Slurm remembers it.

    Raises UserError where Slurm does not answer, RunError for a line of the record that was altered.
    """
    jobs, names = dict[str, str](), dict[str, str]()
    for number, row in enumerate(read_jsonl(_path(sweep)), start=1):
        try:
            jobs |= row["jobs"]
            names |= dict.fromkeys(row["jobs"].values(), row["name"])
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{_path(sweep)}:{number}: cannot be read ({error}). The file was altered.") from error
    states = job_states(names)
    return {trial: TrialJob(job, states[job]) for trial, job in jobs.items() if job in states}


def queued_jobs(sweep: SweepDir) -> dict[str, TrialJob]:
    """Return the jobs of :func:`trial_jobs` that wait or run."""
    return {trial: job for trial, job in trial_jobs(sweep).items() if not has_ended(job.state)}


def visible_jobs(sweep: SweepDir) -> dict[str, TrialJob]:
    """Return the same; none on a machine that does not reach Slurm."""
    try:
        return queued_jobs(sweep)
    except UserError:
        return {}


def with_jobs(progress: Sequence[TrialProgress], jobs: Mapping[str, TrialJob]) -> list[TrialProgress]:
    """Return the state of trials, with the queue's word on those that no process of this machine works on.

    Where locks do not reach from one machine to the other, a trial that runs elsewhere looks as if it did not.
    """
    return [_with_job(trial, jobs.get(trial.status.entry.name)) for trial in progress]


def _with_job(trial: TrialProgress, job: TrialJob | None) -> TrialProgress:
    if job is None or has_ended(job.state) or trial.status.state not in OPEN:
        return trial
    running: State = "evaluating" if trial.status.trained else "running"
    return replace(trial, status=replace(trial.status, state="queued" if job.state.startswith("PENDING") else running))


def stop_file(sweep: SweepDir, array: str) -> Path:
    """Return the file whose existence keeps the jobs of an array from being requeued once they have saved."""
    return sweep.state_dir / f"slurm-{array}.stop"


def cancel_jobs(sweep: SweepDir, jobs: Mapping[str, TrialJob], end: float) -> None:
    """Take ``jobs`` out of the queue, those that run once they have saved.

    Args:
        end: when to give up waiting, of time.monotonic.
    Raises:
        UserError: Slurm does not answer, or refuses.
        RunError: not all have ended in time.
    """
    arrays = sorted({job.array for job in jobs.values()}, key=int)
    for array in arrays:
        write_text(stop_file(sweep, array), "")
    if arrays:
        # As at a time limit; a bare scancel kills after KillWait.
        cancel("--state=RUNNING", "--signal=USR2", *arrays)
    while arrays and (left := [trial for trial, job in queued_jobs(sweep).items() if job.array in arrays]):
        if time.monotonic() > end:
            raise RunError(f"{sweep.path}: is stopping, but has not saved yet: {', '.join(left)}.")
        cancel("--state=PENDING", *arrays)
        time.sleep(POLL_SECONDS)


def cancel(*arguments: str) -> None:
    """Call scancel. Raises UserError where it is missing or Slurm refuses, but not for jobs that have ended."""
    if shutil.which("scancel") is None:
        raise UserError("scancel is not on the PATH. Stop the sweep from a machine of the cluster.")
    for _ in range(TRIES):
        answer = subprocess.run(["scancel", *arguments], capture_output=True, text=True, check=False)
        if _BUSY not in answer.stderr:
            break
        time.sleep(1)
    errors = [line for line in answer.stderr.splitlines() if line and not any(text in line for text in _ENDED)]
    if answer.returncode != 0 and errors:
        raise UserError([f"Slurm refused to cancel: {line}" for line in errors])


def _path(sweep: SweepDir) -> Path:
    return sweep.state_dir / "slurm.jsonl"
