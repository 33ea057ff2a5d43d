"""`python -m rlvr_cli.sweeps.slurm_task`: a job of a sweep, which carries one trial out.

It is a worker as those of `rlvr sweep` on one machine are, with the same lease, attempts, retries and evaluations.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rlvr_cli.config.load import load_config
from rlvr_cli.core.files import await_release, is_held
from rlvr_cli.core.layers import override_text
from rlvr_cli.launch.slurm import write_beginning
from rlvr_cli.launch.slurm_job import LOCK_SECONDS, SAVED
from rlvr_cli.runs.folder import RunDir, create_run
from rlvr_cli.sweeps.folder import Entry, SweepDir
from rlvr_cli.sweeps.slurm_queue import stop_file
from rlvr_cli.sweeps.worker import SweepWorker

_AGAIN_SECONDS = 2.0
USER_ERROR = 2


def run_trial(sweep: SweepDir, name: str, flags: list[str]) -> int:
    """Return the job's exit code: 0 settled or not its to do, 1 failed, 143 saved and to be requeued."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = os.environ["SLURM_JOB_ID"] if array is None else f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    worker = (_OnMachines if "NNODES" in os.environ else SweepWorker)(sweep, job, flags)
    worker.listen()
    stopped = stop_file(sweep, job.partition("_")[0])
    entry = next((entry for entry in worker.plan.named if entry.name == name), None)
    if entry is None:
        return _end(f"{name}: the sweep no longer has this trial, or another's run stands for it", 0)
    if stopped.exists():
        return _end(f"{name}: the sweep was stopped", 0)
    restarted = "SLURM_RESTART_COUNT" in os.environ
    if restarted:
        # On a network file system the lock of a machine that is lost stays for a while.
        await_release(sweep.trial_dir(entry), LOCK_SECONDS)
        await_release(sweep.run_dir(entry).path, LOCK_SECONDS)
    if not worker.take(entry):
        return _end(f"{name}: another worker has it", 1 if restarted else 0)
    status = sweep.status(worker.plan, entry)
    if status.state == "finished":
        return _end(f"{name}: finished", 0)
    if status.state == "failed":
        return _end(f"{name}: failed: {status.reason} (output: {sweep.output_path(entry)})", 1)
    if stopped.exists():
        return _end(f"{name}: saved; the sweep was stopped", 0)
    return _end(f"{name}: saved", SAVED)


class _OnMachines(SweepWorker):
    """A worker on the first of several machines, whose training begins on all of them by `rlvr train --resume`."""

    def _train_command(self, entry: Entry, run: RunDir) -> list[str]:
        first = super()._train_command(entry, run)
        if not run.manifest_path.exists():
            place = [override_text("run.dir", str(self.sweep.path)), override_text("run.name", entry.name)]
            files = [Path(file) for file in entry.base]
            config = load_config(files, entry.option, None, None, [*entry.overrides, *place], import_files=True)
            command = ["rlvr", *first]
            create_run(
                self.sweep.path, entry.name, overwrite=False, fill=lambda aside: write_beginning(config, aside, command)
            )
        return ["train", *self.flags, "--resume", str(run.path)]


def follow(run: RunDir, trial: Path, flags: list[str]) -> None:
    """Train this machine's share of ``run`` as often as the first machine begins, until it is finished or saved.

    Then wait for the first machine, which may evaluate: srun would soon end it after this task.

    Args:
        trial: the folder that the first machine holds until it is done.
    """
    signals: list[int] = []
    # The training ends with that of the first machine, after the same step.
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    code = 1
    while code not in (0, USER_ERROR, SAVED) and not signals:
        time.sleep(_AGAIN_SECONDS)
        if run.manifest_path.exists() and not signals:
            if run.read_manifest().get("status") == "finished":
                break
            command = [sys.executable, "-m", "rlvr_cli", "train", *flags, "--resume", str(run.path)]
            code = subprocess.run(command, check=False).returncode
    while is_held(trial) and not signals:
        time.sleep(_AGAIN_SECONDS)


def _end(text: str, code: int) -> int:
    print(text, flush=True)
    return code


def main() -> None:
    """Arguments: the sweep's folder, the trial's name, flags."""
    folder, name, *flags = sys.argv[1:]
    sweep = SweepDir(Path(folder))
    if os.environ.get("NODE_RANK", "0") != "0":
        entry = next((entry for entry in sweep.read_plan().named if entry.name == name), None)
        if entry is not None:
            follow(sweep.run_dir(entry), sweep.trial_dir(entry), flags)
    else:
        sys.exit(run_trial(sweep, name, flags))


if __name__ == "__main__":
    main()
