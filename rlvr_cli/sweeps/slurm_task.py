"""`python -m rlvr_cli.sweeps.slurm_task`: one task of a sweep's array, which carries one trial out.

It is a worker as those of `rlvr sweep` on one machine are, with the same lease, attempts, retries and evaluations.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rlvr_cli.config.load import load_config
from rlvr_cli.core.layers import override_text
from rlvr_cli.launch.slurm import LOCK_SECONDS, await_release, write_beginning
from rlvr_cli.launch.slurm_script import stop_file, trial_script
from rlvr_cli.runs.folder import RunDir, create_run
from rlvr_cli.sweeps.folder import Entry, SweepDir
from rlvr_cli.sweeps.slots import with_slots
from rlvr_cli.sweeps.worker import SweepWorker

SAVED = 128 + signal.SIGTERM


def run_slurm_task(sweep: SweepDir, name: str, flags: list[str]) -> int:
    """The task's exit code: 0 settled or not its to do, 1 failed, 143 saved and to be queued again."""
    job = os.environ["SLURM_ARRAY_JOB_ID"]
    machines = int(os.environ.get("SLURM_NNODES", "1"))
    worker = (SweepWorker if machines == 1 else _OnMachines)(sweep, f"{job}_{os.environ['SLURM_ARRAY_TASK_ID']}", flags)
    worker.listen()
    stopped = stop_file(sweep.state_dir, job)
    entry = next((one for one in worker.plan.named if one.name == name), None)
    if entry is None:
        return _say(f"{name}: the sweep no longer has this trial, or another's run stands for it", 0)
    if stopped.exists():
        return _say(f"{name}: the sweep was stopped", 0)
    restarted = "SLURM_RESTART_COUNT" in os.environ
    if restarted:
        # On a network file system the lock of a machine that is lost stays for a while.
        await_release(sweep.trial_dir(entry), LOCK_SECONDS)
        await_release(sweep.run_dir(entry).path, LOCK_SECONDS)
    if not worker.take(entry):
        return _say(f"{name}: another worker has it", 1 if restarted else 0)
    status = sweep.status(worker.plan, entry)
    if status.state == "finished":
        return _say(f"{name}: finished", 0)
    if status.state == "failed":
        return _say(f"{name}: failed: {status.reason} (output: {sweep.output_path(entry)})", 1)
    if stopped.exists():
        return _say(f"{name}: saved; the sweep was stopped", 0)
    return _say(f"{name}: saved", SAVED)


class _OnMachines(SweepWorker):
    """A worker whose trials train on several machines: by a step that begins or continues the same run on each."""

    def _train_command(self, entry: Entry, run: RunDir) -> list[str]:
        """`rlvr train --resume`, of a run that is there before any of the machines looks for it."""
        first = super()._train_command(entry, run)
        place = [override_text("run.dir", str(self.sweep.path)), override_text("run.name", entry.name)]
        files = [Path(file) for file in entry.base]
        config = load_config(files, entry.option, None, None, [*entry.overrides, *place], import_files=True)
        self.slurm = with_slots(config.slurm, self.plan.slots)
        if not run.manifest_path.exists():
            command = ["rlvr", *first]
            create_run(
                self.sweep.path, entry.name, overwrite=False, fill=lambda aside: write_beginning(config, aside, command)
            )
        return ["train", "--resume", str(run.path)]

    def _program(self, arguments: list[str]) -> list[str]:
        """Evaluations are made by the first machine alone."""
        if arguments[:2] != ["train", "--resume"]:
            return super()._program(arguments)
        return ["bash", "-c", trial_script(self.slurm, Path(arguments[2]).absolute(), self.flags)]


def _say(text: str, code: int) -> int:
    print(text, flush=True)
    return code


def main() -> None:
    """Arguments: the sweep's folder, the trial's name, flags."""
    folder, name, *flags = sys.argv[1:]
    sys.exit(run_slurm_task(SweepDir(Path(folder)), name, flags))


if __name__ == "__main__":
    main()
