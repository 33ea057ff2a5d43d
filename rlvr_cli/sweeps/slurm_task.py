"""`python -m rlvr_cli.sweeps.slurm_task`: a Slurm job that runs one trial of a sweep.

The job is a sweep worker with the lease, attempts, retries and evaluations of a local one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from rlvr_cli.core.files import is_held, wait_for_release
from rlvr_cli.core.layers import format_override
from rlvr_cli.launch.slurm import write_initial_files
from rlvr_cli.launch.slurm_job import LOCK_SECONDS, SAVED
from rlvr_cli.runs.folder import RunDir, create_run
from rlvr_cli.sweeps.folder import Entry, SweepDir
from rlvr_cli.sweeps.slurm_queue import stop_file
from rlvr_cli.sweeps.worker import SweepWorker

_POLL_SECONDS = 2.0
USER_ERROR = 2


def run_trial(sweep: SweepDir, name: str, flags: list[str]) -> tuple[int, str]:
    """Run a trial; return the exit code of the job (0 settled or skipped, 1 failed, 143 requeue) and the reason."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = os.environ["SLURM_JOB_ID"] if array is None else f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    worker = (_MultiNodeWorker if "NNODES" in os.environ else SweepWorker)(sweep, job, flags)
    worker.install_sigterm_handler()
    stop_path = stop_file(sweep, job.partition("_")[0])
    entry = next((entry for entry in worker.plan.named if entry.name == name), None)
    if entry is None:
        return 0, "the trial was removed from the sweep"
    if stop_path.exists():
        return 0, "the sweep was stopped"
    restarted = "SLURM_RESTART_COUNT" in os.environ
    if restarted:
        # A network file system releases the locks of a lost machine late.
        wait_for_release(sweep.trial_dir(entry), LOCK_SECONDS)
        wait_for_release(sweep.run_dir(entry).path, LOCK_SECONDS)
    if not worker.run_trial(entry):
        return int(restarted), "another worker runs it"
    status = sweep.status(worker.plan, entry)
    if status.state == "finished":
        return 0, "finished"
    if status.state == "failed":
        return 1, f"failed: {status.reason} (output: {sweep.output_path(entry)})"
    return (0, "saved; the sweep was stopped") if stop_path.exists() else (SAVED, "saved")


class _MultiNodeWorker(SweepWorker):
    """The worker on the first of several nodes, which all start the training with `rlvr train --resume`."""

    def _train_command(self, entry: Entry, run: RunDir) -> list[str]:
        first = super()._train_command(entry, run)
        if not run.manifest_path.exists():
            run_keys = [format_override("run.dir", str(self.sweep.path)), format_override("run.name", entry.name)]
            fill = partial(write_initial_files, entry.load_config(*run_keys), command=["rlvr", *first])
            create_run(self.sweep.path, entry.name, overwrite=False, fill=fill)
        return ["train", *self.flags, "--resume", str(run.path)]


def join_training(run: RunDir, trial: Path, flags: list[str]) -> None:
    """Join the training of ``run`` on this node whenever the first node starts it, until it is finished or saved.

    Then wait for the first node, which may evaluate: srun ends its task soon after this one.

    Args:
        trial: the folder whose lock the first node holds until it is done.
    """
    signals: list[int] = []
    # The signal ends the training after the same step on all nodes.
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    code = 1
    while code not in (0, USER_ERROR, SAVED) and not signals:
        time.sleep(_POLL_SECONDS)
        if run.manifest_path.exists() and not signals:
            if run.read_manifest().get("status") == "finished":
                break
            command = [sys.executable, "-m", "rlvr_cli", "train", *flags, "--resume", str(run.path)]
            code = subprocess.run(command, check=False).returncode
    while is_held(trial) and not signals:
        time.sleep(_POLL_SECONDS)


def main() -> None:
    """Arguments: the sweep's folder, the trial's name, flags."""
    folder, name, *flags = sys.argv[1:]
    sweep = SweepDir(Path(folder))
    if os.environ.get("NODE_RANK", "0") != "0":
        entry = next((entry for entry in sweep.read_plan().named if entry.name == name), None)
        if entry is not None:
            join_training(sweep.run_dir(entry), sweep.trial_dir(entry), flags)
    else:
        code, outcome = run_trial(sweep, name, flags)
        print(f"{name}: {outcome}", flush=True)
        sys.exit(code)


if __name__ == "__main__":
    main()
