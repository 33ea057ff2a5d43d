"""The state of Slurm jobs: by squeue, or for purged jobs by sacct, if available."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlvr_cli.core.errors import UserError

# submitit's folder in the folder of a run or of a sweep's state: a job's script, its pickled command and its output.
FOLDER = "slurm"
_SCRIPT = "_submission.sh"
_ENDS = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT"
_TIMEOUT = 30.0


def job_of(run: Path) -> str | None:
    """Return the id of the run's last submitted job, or None."""
    jobs = [path.name.removesuffix(_SCRIPT) for path in (run / FOLDER).glob(f"[0-9]*{_SCRIPT}")]
    return max(jobs, key=int, default=None)


def job_states(names: Mapping[str, str]) -> dict[str, str]:
    """Return the states, by id, of the jobs that Slurm still has.

    A state is Slurm's, with its reason if any: `RUNNING`, `PENDING (Resources)`, `NODE_FAIL`.

    Args:
        names: the jobs' names by id (of an array 41_0, 41_1), since a reinstalled cluster reuses ids.
    Raises:
        UserError: squeue is missing, or fails.
    """
    if not names:
        return {}
    jobs = ",".join(dict.fromkeys(job.partition("_")[0] for job in names))
    if shutil.which("squeue") is None:
        raise UserError(f"squeue is not on the PATH: query the state of the jobs {jobs} on a machine of the cluster.")
    options = ["--noheader", "--array", "--states=all", f"--jobs={jobs}", "--format=%i|%T|%r|%j"]
    answer = _run(["squeue", *options])
    if answer.returncode != 0 and "Invalid job id" not in answer.stderr:
        raise UserError(f"squeue failed for the jobs {jobs}: {' '.join(answer.stderr.split()) or answer.returncode}")
    states = _read(answer.stdout, names)
    forgotten = sorted(names.keys() - states.keys())
    if forgotten and shutil.which("sacct") is not None:
        # It fails on a cluster without accounting.
        options = ["--noheader", "--parsable2", "--allocations", "--format=JobID,State,Reason,JobName"]
        states |= _read(_run(["sacct", *options, f"--jobs={','.join(forgotten)}"]).stdout, names)
    return states


def has_ended(state: str) -> bool:
    """Return whether the state is final."""
    return state.split()[0] in _ENDS.split()


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {_TIMEOUT:.0f} s")


def _read(text: str, names: Mapping[str, str]) -> dict[str, str]:
    states = {}
    for line in text.splitlines():
        job, state, reason, name = (*line.split("|", 3), "", "", "")[:4]
        if names.get(job) == name:
            # sacct has `CANCELLED by 1000`.
            states[job] = state.split()[0] + (f" ({reason})" if reason not in ("", "None") else "")
    return states
