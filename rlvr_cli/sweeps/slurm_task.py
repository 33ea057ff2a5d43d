"""`python -m rlvr_cli.sweeps.slurm_task`: one task of a sweep's array, which carries one trial out.

It is a worker as those of `rlvr sweep` on one machine are, with the same lease, attempts, retries and evaluations.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rlvr_cli.launch.slurm import LOCK_SECONDS, await_release
from rlvr_cli.launch.slurm_script import stop_file
from rlvr_cli.sweeps.folder import SweepDir
from rlvr_cli.sweeps.worker import Worker

SAVED = 128 + signal.SIGTERM


def carry_out(sweep: SweepDir, name: str, flags: list[str]) -> int:
    """The task's exit code: 0 settled or not its to do, 1 failed, 143 saved and to be queued again."""
    job = os.environ["SLURM_ARRAY_JOB_ID"]
    worker = Worker(sweep, f"{job}_{os.environ['SLURM_ARRAY_TASK_ID']}", flags)
    worker.listen()
    stopped = stop_file(sweep.state_dir, job)
    entry = next((one for one in worker.plan.named if one.name == name), None)
    if entry is None or entry.shared:
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
    look = sweep.look(worker.plan, entry)
    if look.state == "finished":
        return _say(f"{name}: finished", 0)
    if look.state == "failed":
        return _say(f"{name}: failed: {look.reason} (output: {sweep.output_path(entry)})", 1)
    if stopped.exists():
        return _say(f"{name}: saved; the sweep was stopped", 0)
    return _say(f"{name}: saved", SAVED)


def _say(text: str, code: int) -> int:
    print(text, flush=True)
    return code


def main() -> None:
    """Arguments: the sweep's folder, the trial's name, flags."""
    folder, name, *flags = sys.argv[1:]
    sys.exit(carry_out(SweepDir(Path(folder)), name, flags))


if __name__ == "__main__":
    main()
