"""Run a sweep: start and restart workers, show all trials, save them on a stop signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import check_no_link
from rlvr_cli.core.processes import end_with_parent
from rlvr_cli.core.text import count, some
from rlvr_cli.launch.stopping import StopRequest, say
from rlvr_cli.sweeps.expand import Sweep
from rlvr_cli.sweeps.folder import OPEN, Entry, SweepDir, SweepPlan
from rlvr_cli.sweeps.prepare import check_not_running, check_optuna, make_folder, prepare_sweep, write_sweep
from rlvr_cli.sweeps.ranking import rank, write_confirmation
from rlvr_cli.sweeps.screen import ProgressReader, SweepScreen, TrialProgress, file_stamp
from rlvr_cli.sweeps.slots import Slot, allocate_slots

WORKER = "rlvr_cli.sweeps.worker"
# Poll interval, in seconds.
TICK = 0.5
# Seconds between reads of all trials: a lease that another machine released changes no file.
READ_ALL_SECONDS = 30.0
# The maximum number of trials in a message.
SHOWN = 6


@dataclass(frozen=True)
class WorkerOptions:
    """The number of workers (None = one per free slot), and flags for each command that they run."""

    workers: int | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepEnd:
    """The end of a sweep; exit code 0: all done, 1: some failed, 128 + signal: stopped."""

    folder: SweepDir
    progress: list[TrialProgress]
    exit_code: int


def run_sweep(sweep: Sweep, options: WorkerOptions, *, console: Console) -> SweepEnd:
    """Run or continue ``sweep``. Raises UserError before any trial starts, RunError if a worker fails."""
    folder = SweepDir(sweep.folder)
    if sweep.space is not None:
        check_optuna()
    check_not_running(sweep, folder)
    worker_slots = allocate_slots(options.workers, sweep.file.spec.slots.model_dump())
    prepare_sweep(sweep, folder)
    make_folder(folder)
    with folder.locked():
        prepared = prepare_sweep(sweep, folder)
        write_sweep(sweep, folder, prepared.plan)
        for note in prepared.notes:
            say(console, note)
        return _Driver(folder, prepared.plan, worker_slots, options.flags, console).drive()


def retry_trials(folder: SweepDir, names: Sequence[str], options: WorkerOptions, *, console: Console) -> SweepEnd:
    """Retry the failed trials in ``names`` (default: all), and finish the pruned ones in ``names``.

    Raises UserError for any other trial, and as :func:`run_sweep`.
    """
    plan = folder.read_plan()
    if plan.search is not None:
        check_optuna()
    worker_slots = allocate_slots(options.workers, plan.slots)
    with folder.locked():
        reopen_trials(folder, plan, names)
        return _Driver(folder, plan, worker_slots, options.flags, console).drive()


def reopen_trials(folder: SweepDir, plan: SweepPlan, names: Sequence[str]) -> list[Entry]:
    """Reopen the trials of :func:`retry_trials`; the caller holds the sweep's lock. Raises UserError for others."""
    statuses = folder.statuses(plan)
    failed = {status.entry.name: status.entry for status in statuses if status.state == "failed"}
    # Pruned trials are completed only if the user names them.
    pruned = {status.entry.name: status.entry for status in statuses if status.state == "pruned"}
    allowed = failed | {name: entry for name, entry in pruned.items() if name in names}
    all_names = {entry.name for entry in plan.named}
    pruned_hint = f" Pruned by the search (name them to finish them): {some(list(pruned), SHOWN)}." if pruned else ""
    hint = f"Failed: {', '.join(failed) or 'none'}.{pruned_hint}"
    problems = [
        f"{name}: {'has not failed' if name in all_names else 'no such trial'}. {hint}"
        for name in names
        if name not in allowed
    ]
    if problems or not allowed:
        raise UserError(problems or f"{folder.path}: no trial has failed; there is nothing to retry.{pruned_hint}")
    chosen = [allowed[name] for name in names or allowed]
    for entry in chosen:
        folder.record(entry, "retry")
    return chosen


class _Driver:
    """Runs a sweep; the caller holds its lock."""

    def __init__(
        self, folder: SweepDir, plan: SweepPlan, slots: Sequence[Slot], flags: Sequence[str], console: Console
    ) -> None:
        self.folder, self.plan, self.slots, self.flags, self.console = folder, plan, slots, flags, console
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.reader = ProgressReader(folder)
        self.plan_stamp: tuple[int, int] | None = None

    def drive(self) -> SweepEnd:
        """Run until no trial is open or the sweep is stopped."""
        terminated, read_all_at = False, 0.0
        with StopRequest() as stop, SweepScreen(self.console) as screen:
            for line in (self._announcement(), *self.plan.notes()):
                screen.message(line)
            try:
                while True:
                    stopping = stop.signal is not None
                    reaped = self._reap_workers(screen, stopping=stopping)
                    self._read_search()
                    all_again = reaped or time.monotonic() > read_all_at
                    if all_again:
                        read_all_at = time.monotonic() + READ_ALL_SECONDS
                    now = self.reader.read(self.plan, all_again=all_again)
                    screen.show(now)
                    if stopping and not terminated:
                        terminated = True
                        self._signal_workers(signal.SIGTERM)
                    if not stopping:
                        self._start_workers(now)
                    if not self.workers and (stopping or not (_unsettled(now) or self._searching())):
                        break
                    time.sleep(TICK)
            finally:
                # A trial's process dies with its worker.
                self._signal_workers(signal.SIGKILL)
                for process in self.workers.values():
                    process.wait()
                self._read_search()
                self.folder.close_attempts(self.plan)
            now = self.reader.read(self.plan, all_again=True)
            screen.show(now)
        ranking = rank(self.folder, self.plan, [trial.status for trial in now])
        if ranking is not None and stop.signal is None:
            write_confirmation(self.folder, self.plan, ranking)
        failed = any(trial.status.state == "failed" for trial in now)
        return SweepEnd(self.folder, now, stop.exit_code if stop.signal is not None else int(failed))

    def _read_search(self) -> None:
        """Reload the plan if the workers of a search have extended it."""
        stamp = file_stamp(self.folder.plan_path)
        if self.plan.search is not None and stamp != self.plan_stamp:
            self.plan_stamp = stamp
            self.plan = self.folder.read_plan()

    def _searching(self) -> bool:
        return self.plan.search is not None and self.plan.search.ended is None

    def _announcement(self) -> str:
        if self.plan.search is not None:
            so_far = f"{count(len(self.plan.named), 'trial')} so far, " if self.plan.named else ""
            return f"sweep {self.folder.path}: a search, {so_far}{count(len(self.slots), 'worker')}"
        trials = count(len(self.plan.named), "trial")
        return f"sweep {self.folder.path}: {trials}, {count(len(self.slots), 'worker')}"

    def _start_workers(self, now: Sequence[TrialProgress]) -> None:
        """Start workers in free slots, at most one per unsettled trial."""
        waiting = any(trial.status.state in OPEN for trial in now)
        for number, slot in enumerate(self.slots):
            # A new worker may not have leased its trial yet.
            needed = waiting and len(_unsettled(now)) > len(self.workers)
            # A worker must ask for the next trials of a search, or end it.
            search = self.plan.search
            needed = needed or (search is not None and self._searching() and (search.asking or not self.workers))
            if needed and number not in self.workers:
                self.workers[number] = self._start(number, slot)

    def _start(self, number: int, slot: Slot) -> subprocess.Popen[bytes]:
        cores = json.dumps(slot.cores)
        check_no_link(self._log(number))
        with self._log(number).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", WORKER, str(self.folder.path), str(number), cores, *self.flags],
                env={**os.environ, **slot.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C must reach this process only.
                start_new_session=True,
                preexec_fn=partial(end_with_parent, os.getpid()),
            )

    def _reap_workers(self, screen: SweepScreen, *, stopping: bool) -> bool:
        """Reap finished workers; return whether there were any. Raises RunError if one failed."""
        before = len(self.workers)
        for number, process in list(self.workers.items()):
            code = process.poll()
            if code is None:
                continue
            del self.workers[number]
            if code < 0 and not stopping:
                name = signal.Signals(-code).name
                screen.message(f"worker {number} was killed by {name}; its trial continues")
            elif code > 0:
                lines = self._log(number).read_text(encoding="utf-8", errors="replace").strip().splitlines()
                last = lines[-1] if lines else f"exit code {code}"
                raise RunError(
                    f"worker {number} of {self.folder.path} failed: {last} (its output: {self._log(number)}). The "
                    f"other trials were stopped; continue with: {self.plan.command}"
                )
        return len(self.workers) < before

    def _signal_workers(self, number: signal.Signals) -> None:
        for process in self.workers.values():
            if process.poll() is None:
                process.send_signal(number)

    def _log(self, number: int) -> Path:
        return self.folder.state_dir / f"worker-{number}.txt"


def _unsettled(now: Sequence[TrialProgress]) -> list[TrialProgress]:
    return [trial for trial in now if trial.status.state in (*OPEN, "running", "evaluating")]
