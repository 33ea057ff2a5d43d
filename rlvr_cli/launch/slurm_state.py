"""The state of Slurm jobs, by squeue, or by sacct for purged jobs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlvr_cli.core.errors import UserError

# submitit's folder of a run or a sweep's state: scripts, pickled commands and output of jobs.
FOLDER = "slurm"
_SCRIPT = "_submission.sh"
_FINAL_STATES = "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT"
_TIMEOUT = 30.0


def find_last_job(run: Path) -> str | None:
    """Return the id of the run's last submitted job, or None."""
    jobs = [path.name.removesuffix(_SCRIPT) for path in (run / FOLDER).glob(f"[0-9]*{_SCRIPT}")]
    return max(jobs, key=int, default=None)


def job_states(names: Mapping[str, str]) -> dict[str, str]:
    """Return the states by id of the jobs that Slurm has not purged: `RUNNING`, `PENDING (Resources)`, ...

    ``names``: the jobs' names by id (in an array 41_0, 41_1); a reinstalled cluster reuses ids. Raises UserError if
    squeue is missing or fails.
    """
    if not names:
        return {}
    jobs = ",".join(dict.fromkeys(job.partition("_")[0] for job in names))
    if shutil.which("squeue") is None:
        raise UserError(f"squeue is not on the PATH. Query the jobs {jobs} on a machine of the cluster.")
    options = ["--noheader", "--array", "--states=all", f"--jobs={jobs}", "--format=%i|%T|%r|%j"]
    result = _run(["squeue", *options])
    if result.returncode != 0 and "Invalid job id" not in result.stderr:
        raise UserError(f"squeue failed for the jobs {jobs}: {' '.join(result.stderr.split()) or result.returncode}")
    states = _parse_states(result.stdout, names)
    purged = sorted(names.keys() - states.keys())
    if purged and shutil.which("sacct") is not None:
        # It fails on a cluster without accounting.
        options = ["--noheader", "--parsable2", "--allocations", "--format=JobID,State,Reason,JobName"]
        states |= _parse_states(_run(["sacct", *options, f"--jobs={','.join(purged)}"]).stdout, names)
    return states


def has_ended(state: str) -> bool:
    return state.split()[0] in _FINAL_STATES.split()


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no response in {_TIMEOUT:.0f} s")


def _parse_states(output: str, names: Mapping[str, str]) -> dict[str, str]:
    states = {}
    for line in output.splitlines():
        job, state, reason, name = (*line.split("|", 3), "", "", "")[:4]
        if names.get(job) == name:
            # sacct prints `CANCELLED by 1000`.
            states[job] = state.split()[0] + (f" ({reason})" if reason not in ("", "None") else "")
    return states
