"""The function that submitit runs in a job: a command that saves on SIGTERM and continues when rerun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import wait_for_release, write_text
from rlvr_cli.launch.command import find_free_port
from rlvr_cli.launch.slurm_state import job_states

if TYPE_CHECKING:
    from submitit import JobEnvironment
    from submitit.helpers import DelayedSubmission

# The exit code of a command that has saved after SIGTERM.
SAVED = 128 + signal.SIGTERM
# Seconds until a file system releases the locks of a lost machine.
LOCK_SECONDS = 180.0
# Seconds before its time limit at which a job that has not saved is requeued from its last checkpoint.
LAST_SECONDS = 15
POLL_SECONDS = 0.5
_ATTEMPTS = 5
# Variables of a launcher around the submitting shell.
_LAUNCHER_VARIABLES = (
    *("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)


@dataclass(frozen=True)
class Job:
    """A command as a job, on each of its nodes, which saves and requeues at SIGUSR2 and SIGTERM.

    Attributes:
        command: exits with 143 after a save on SIGTERM, and continues when rerun.
        save_seconds: timeout of a save; the job is then requeued without it.
        run: the run's folder, whose lock a restarted job waits for; None = the command waits.
    """

    command: tuple[str, ...]
    save_seconds: float
    run: Path | None = None

    def __call__(self) -> None:
        from submitit import JobEnvironment

        environment = JobEnvironment()
        signals: list[float] = []
        child: subprocess.Popen[bytes] | None = None

        def stop(number: int, frame: FrameType | None) -> None:
            signals.append(time.monotonic())
            if child is not None:
                child.terminate()

        # submitit ignores SIGTERM, the only signal before a kill on a cluster without `preempt_send_user_signal`.
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, stop)
        if self.run is not None and environment.global_rank == 0 and "SLURM_RESTART_COUNT" in os.environ:
            wait_for_release(self.run, LOCK_SECONDS)
        code: int | None = SAVED
        if not signals:
            # Slurm sends SIGUSR2 to every process of a job step.
            ignore = partial(signal.signal, signal.SIGUSR2, signal.SIG_IGN)
            child = subprocess.Popen(self.command, env=_command_environment(environment), preexec_fn=ignore)
            if signals:
                child.terminate()
            while (code := child.poll()) is None and not (
                signals and time.monotonic() > signals[0] + self.save_seconds
            ):
                time.sleep(POLL_SECONDS)
        # A training that SIGTERM killed before its start has nothing to save.
        if code in (None, SAVED, -signal.SIGTERM):
            self._requeue(environment, "not saved in time" if code is None else "saved")
            code = SAVED
        sys.exit(code)

    def checkpoint(self) -> DelayedSubmission:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _requeue(self, environment: JobEnvironment, outcome: str) -> None:
        """Requeue the job and exit, unless Slurm is ending it (cancelled or requeued)."""
        from submitit.core.job_environment import SignalHandler

        if environment.global_rank > 0:
            sys.exit(0)
        job = environment.job_id
        state = _query_state(job)
        if state.split()[:1] != ["RUNNING"]:
            print(f"rlvr job {job}: {outcome}, not requeued: its state is {state or 'unknown'}", flush=True)
            return
        print(f"rlvr job {job}: {outcome}, requeued", flush=True)
        # Override submitit's limit: a training may time out any number of times.
        submission = self.checkpoint()
        submission.set_timeout(10**6, 1)
        SignalHandler(environment, environment.paths, submission).checkpoint_and_try_requeue(signal.SIGUSR2)


def _query_state(job: str) -> str:
    """Return the job's state; "" if squeue fails repeatedly."""
    for _ in range(_ATTEMPTS):
        with suppress(UserError):
            return job_states({job: os.environ["SLURM_JOB_NAME"]}).get(job, "")
        time.sleep(POLL_SECONDS)
    return ""


def _command_environment(environment: JobEnvironment) -> dict[str, Any]:
    """Return the command's environment, with torchrun's variables on several nodes."""
    variables = {name: value for name, value in os.environ.items() if name not in _LAUNCHER_VARIABLES}
    if environment.num_nodes == 1:
        return variables
    return variables | {
        "NNODES": str(environment.num_nodes),
        "NODE_RANK": str(environment.node),
        # srun runs on the first node.
        "MASTER_ADDR": os.environ["SLURM_LAUNCH_NODE_IPADDR"],
        "MASTER_PORT": _agree_on_port(environment),
    }


def _agree_on_port(environment: JobEnvironment) -> str:
    """Return a free port of the first node, passed to the others through a file."""
    path = environment.paths.folder / f"{environment.job_id}.port"
    start = os.environ.get("SLURM_RESTART_COUNT", "0")
    if environment.global_rank == 0:
        write_text(path, f"{start} {find_free_port()}")
    while not path.exists() or path.read_text().split()[0] != start:
        time.sleep(POLL_SECONDS)
    return path.read_text().split()[1]
