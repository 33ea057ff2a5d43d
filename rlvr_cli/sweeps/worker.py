"""`python -m rlvr_cli.sweeps.worker`: run one trial, under a lease, until it is settled.

It does not import torch: the training is a child process `rlvr train`, which is killed with the worker.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import check_no_link, wait_for_release
from rlvr_cli.core.layers import format_override
from rlvr_cli.core.processes import end_with_parent
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.sweeps.folder import Entry, SweepDir, SweepPlan, newest_step
from rlvr_cli.sweeps.naming import config_digest

POLL_SECONDS = 0.5
TAIL_LINES = 12
BAD_INPUT = 2
# Timeout for the lock that the processes of a killed trial hold on its run.
RELEASE_SECONDS = 60.0
# Files of a run that was killed before its manifest was written.
INCOMPLETE = {"rollouts", "checkpoints", "eval", ".lock", "config.yaml", "log.txt"}


class SweepWorker:
    """A worker of ``sweep``, identified by ``number``; ``flags`` are added to its commands."""

    def __init__(self, sweep: SweepDir, number: int | str, flags: list[str]) -> None:
        self.sweep, self.number, self.flags = sweep, number, flags
        self.plan: SweepPlan = sweep.read_plan()
        self.parent = os.getppid()
        self.child: subprocess.Popen[bytes] | None = None
        self.stopping = False

    def install_sigterm_handler(self) -> None:
        """Install the SIGTERM handler: save the trial, then stop."""
        signal.signal(signal.SIGTERM, self._handle_sigterm)

    def run_trial(self, entry: Entry) -> bool:
        """Run ``entry`` until it is settled or SIGTERM arrives; return False if another worker holds its lease."""
        with self.sweep.lease(entry) as acquired:
            while acquired and not self.stopping:
                if self.sweep.status(self.plan, entry).state not in ("running", "evaluating"):
                    break
                self._attempt(entry)
        return acquired

    def _attempt(self, entry: Entry) -> None:
        run = self.sweep.run_dir(entry)
        evaluation = self.sweep.status(self.plan, entry).trained
        stage: dict[str, Any] = {"eval": self.plan.eval} if evaluation else {}
        self.sweep.record(entry, "start", worker=self.number, pid=os.getpid(), step=newest_step(run), **stage)
        output = self.sweep.output_path(entry)
        begin = output.stat().st_size if output.exists() else 0
        try:
            command = self._eval_command(run) if evaluation else self._train_command(entry, run)
        except UserError as error:
            message = " ".join(error.problems)
            self.sweep.record(entry, "end", outcome="bad_input", exit_code=None, reason=message, **stage)
            return
        code = self._run_command(command, output)
        done = code == 0 and (evaluation or self.sweep.is_trained(entry))
        if done:
            outcome, reason = "finished", None
        elif self.stopping:
            outcome, reason = "interrupted", None
        elif code == 0:
            outcome = "failed"
            reason = f"exit code 0 at step {newest_step(run)} of {entry.steps}: ended early (os._exit in user code?)"
        else:
            outcome = "bad_input" if code == BAD_INPUT else "failed"
            reason = _failure_reason(code, run, output, begin)
        self.sweep.record(entry, "end", outcome=outcome, exit_code=code, reason=reason, **stage)

    def _train_command(self, entry: Entry, run: RunDir) -> list[str]:
        """Return the arguments of `rlvr train`, to start or resume.

        Raises UserError if another process holds the run or its configuration changed.
        """
        if not wait_for_release(run.path, RELEASE_SECONDS):
            raise UserError(f"{run.path}: another process is training this run. Wait for it, or stop it.")
        clear_incomplete(run)
        if run.manifest_path.exists():
            return ["train", "--resume", str(run.path), *self.flags]
        if (digest := config_digest(entry.load_config())) != entry.id:
            raise UserError(
                f"{entry.name}: its configuration has changed since the sweep started (hash "
                f"{digest}, not {entry.id}): presets or the environment changed. Run `rlvr sweep` with "
                "the file again."
            )
        run_keys = [format_override("run.dir", str(self.sweep.path)), format_override("run.name", entry.name)]
        return ["train", *self.flags, *entry.train_arguments(), *run_keys]

    def _eval_command(self, run: RunDir) -> list[str]:
        assert self.plan.eval is not None
        return ["eval", str(run.path), *self.flags, *self.plan.eval]

    def _run_command(self, arguments: list[str], output: Path) -> int:
        """Run a command and return its exit code; it is killed with this process, which exits with its parent."""
        check_no_link(output)
        with output.open("ab") as stream:
            self.child = subprocess.Popen(
                self._program(arguments),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(end_with_parent, os.getpid()),
            )
        if self.stopping:
            self.child.terminate()
        while True:
            try:
                return self.child.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if os.getppid() != self.parent:
                    self.child.kill()
                    os._exit(1)

    def _program(self, arguments: list[str]) -> list[str]:
        return [sys.executable, "-m", "rlvr_cli", *arguments]

    def _handle_sigterm(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True
        if self.child is not None:
            self.child.terminate()


def clear_incomplete(run: RunDir) -> None:
    """Delete a run that was killed before it had a manifest. Raises UserError for a folder with other files."""
    if not run.path.exists() or run.manifest_path.exists():
        return
    others = sorted(
        path.name
        for path in run.path.iterdir()
        if (path.name not in INCOMPLETE and not path.name.endswith(".tmp")) or (path.is_dir() and any(path.iterdir()))
    )
    if others:
        raise UserError(
            f"{run.path}: is not a run (it has no manifest.json), and contains {', '.join(others)}. Move it away."
        )
    shutil.rmtree(run.path)


def _failure_reason(code: int, run: RunDir, output: Path, begin: int) -> str:
    """Return why a command failed, by its signal, the run's manifest, or the last lines of its output."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}{' (out of memory?)' if -code == signal.SIGKILL else ''}"
    if code in (128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        return f"stopped by {signal.Signals(code - 128).name}, which the sweep did not send"
    if run.manifest_path.exists() and code == 1:
        with suppress(RunError):
            if error := run.read_manifest().get("error"):
                return str(error)
    with output.open("rb") as stream:
        stream.seek(begin)
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return "\n".join(lines[-TAIL_LINES:]) or f"exit code {code}, no output"


def main() -> None:
    """Arguments: the sweep's folder, the trial's name, the worker's number, its cores as JSON (null = all), flags."""
    folder, name, number, cores, *flags = sys.argv[1:]
    affinity = json.loads(cores)
    if affinity is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, affinity)
    worker = SweepWorker(SweepDir(Path(folder)), int(number), flags)
    worker.install_sigterm_handler()
    worker.run_trial(next(entry for entry in worker.plan.named if entry.name == name))


if __name__ == "__main__":
    main()
