"""Run a sweep: a worker process per trial, a live table, and a save of all trials on a stop signal."""

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
from rlvr_cli.core.text import count
from rlvr_cli.launch.stopping import StopRequest, print_line
from rlvr_cli.sweeps.expand import Sweep
from rlvr_cli.sweeps.folder import OPEN, Entry, SweepDir, SweepPlan
from rlvr_cli.sweeps.prepare import check_not_running, check_optuna, make_folder, prepare_sweep, write_sweep
from rlvr_cli.sweeps.progress import SweepScreen, TrialProgress, read_progress
from rlvr_cli.sweeps.ranking import rank_arms, write_confirmation
from rlvr_cli.sweeps.slots import Slot, allocate_slots

WORKER = "rlvr_cli.sweeps.worker"
POLL_SECONDS = 0.5
# The poll interval for trials that other processes hold.
REMOTE_POLL_SECONDS = 30.0


@dataclass(frozen=True)
class WorkerOptions:
    """The number of workers (None = one per free slot), and flags for their commands."""

    workers: int | None = None
    flags: tuple[str, ...] = ()


def run_sweep(sweep: Sweep, options: WorkerOptions, *, console: Console) -> int:
    """Run or continue ``sweep``; return 0 if all trials finished, 1 if some failed, 128 + signal if stopped.

    Raises UserError before any trial starts, RunError if a worker fails.
    """
    folder = SweepDir(sweep.folder)
    if sweep.space is not None:
        check_optuna()
    check_not_running(sweep, folder)
    worker_slots = allocate_slots(options.workers, sweep.file.spec.slots.model_dump())
    prepare_sweep(sweep, folder)
    make_folder(folder)
    with folder.lock():
        prepared = prepare_sweep(sweep, folder)
        write_sweep(sweep, folder, prepared.plan)
        for note in prepared.notes:
            print_line(console, note)
        return _Driver(folder, prepared.plan, worker_slots, options.flags, console).run()


def retry_trials(folder: SweepDir, names: Sequence[str], options: WorkerOptions, *, console: Console) -> int:
    """Retry the failed trials in ``names`` (default: all). Returns and raises as :func:`run_sweep`."""
    plan = folder.read_plan()
    if plan.search is not None:
        check_optuna()
    worker_slots = allocate_slots(options.workers, plan.slots)
    with folder.lock():
        reopen_trials(folder, plan, names)
        return _Driver(folder, plan, worker_slots, options.flags, console).run()


def reopen_trials(folder: SweepDir, plan: SweepPlan, names: Sequence[str]) -> list[Entry]:
    """Reopen failed trials; the caller holds the sweep's lock. Raises UserError for trials that have not failed."""
    failed = {status.entry.name: status.entry for status in folder.statuses(plan) if status.state == "failed"}
    all_names = {entry.name for entry in plan.named}
    problems = [
        f"{name}: {'has not failed' if name in all_names else 'unknown trial'}. Failed: {', '.join(failed) or 'none'}."
        for name in names
        if name not in failed
    ]
    if problems or not failed:
        raise UserError(problems or f"{folder.path}: no trial has failed.")
    chosen = [failed[name] for name in names or failed]
    for entry in chosen:
        folder.record(entry, "retry")
    return chosen


@dataclass
class _Worker:
    """The process that runs the trial ``entry``; ``pruned``: it got SIGTERM because the search prunes the trial."""

    entry: Entry
    process: subprocess.Popen[bytes]
    pruned: bool = False


class _Driver:
    def __init__(
        self, folder: SweepDir, plan: SweepPlan, slots: Sequence[Slot], flags: Sequence[str], console: Console
    ) -> None:
        self.folder, self.plan, self.slots, self.flags, self.console = folder, plan, slots, flags, console
        self.workers: dict[int, _Worker] = {}
        self.progress: dict[str, TrialProgress] = {}
        self.next_remote_poll = 0.0
        # True if the search has no further suggestion until a trial ends.
        self.exhausted = False
        self.search = None
        if plan.search is not None:
            from rlvr_cli.sweeps.search import Search

            self.search = Search(folder, plan)

    def run(self) -> int:
        """Run until no trial is open or the sweep is stopped; return the exit code."""
        terminated = False
        with StopRequest() as stop, SweepScreen(self.console) as screen:
            self._refresh(self.plan.named)
            for trial in self._trials():
                # A driver may have been killed after the end of a trial and before the decision to prune it.
                if trial.status.state in ("finished", "failed"):
                    self._prune(trial.status.entry)
            for line in (self._start_message(), *self.plan.notes()):
                screen.message(line)
            try:
                while True:
                    self._reap_workers(screen, stopping=stop.signal is not None)
                    if stop.signal is None:
                        self._start_workers()
                    elif not terminated:
                        terminated = True
                        self._signal_workers(signal.SIGTERM)
                    self._refresh([worker.entry for worker in self.workers.values()])
                    self._refresh_remote()
                    screen.show(self._trials())
                    if not self.workers and (stop.signal is not None or self._is_settled()):
                        break
                    time.sleep(POLL_SECONDS)
            finally:
                # A trial's process dies with its worker.
                self._signal_workers(signal.SIGKILL)
                for worker in self.workers.values():
                    worker.process.wait()
                self.folder.close_attempts(self.plan)
            self._refresh(self.plan.named)
            screen.show(self._trials())
        trials = self._trials()
        ranking = rank_arms(self.folder, self.plan, [trial.status for trial in trials])
        if ranking is not None and stop.signal is None:
            write_confirmation(self.folder, self.plan, ranking)
        failed = any(trial.status.state == "failed" for trial in trials)
        return stop.exit_code if stop.signal is not None else int(failed)

    def _refresh(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.progress[entry.id] = read_progress(self.folder, self.folder.status(self.plan, entry))

    def _refresh_remote(self) -> None:
        """Refresh the running trials, which other processes may hold, every :data:`REMOTE_POLL_SECONDS`."""
        if time.monotonic() > self.next_remote_poll:
            self.next_remote_poll = time.monotonic() + REMOTE_POLL_SECONDS
            busy = [trial.status.entry for trial in self._trials() if trial.status.state in ("running", "evaluating")]
            self._refresh(busy)

    def _trials(self) -> list[TrialProgress]:
        return [self.progress[entry.id] for entry in self.plan.named]

    def _is_settled(self) -> bool:
        return not any(trial.status.state in (*OPEN, "running", "evaluating") for trial in self._trials())

    def _start_message(self) -> str:
        trials = count(len(self.plan.named), "trial")
        if self.search is not None:
            trials = f"a search, {trials} so far" if self.plan.named else "a search"
        return f"sweep {self.folder.path}: {trials}, {count(len(self.slots), 'worker')}"

    def _start_workers(self) -> None:
        for worker in self.workers.values():
            if not worker.pruned and self.search is not None and self.search.prune_decision(worker.entry):
                # A second signal would end the trial without saving it.
                worker.pruned = True
                worker.process.terminate()
        for number, slot in enumerate(self.slots):
            if number not in self.workers and (entry := self._next_trial()) is not None:
                self.workers[number] = _Worker(entry, self._spawn_worker(number, slot, entry))

    def _next_trial(self) -> Entry | None:
        """Return an open trial without a worker, else one of a newly suggested configuration."""
        running = {worker.entry.id for worker in self.workers.values()}
        while True:
            for entry in self.plan.named:
                if entry.id in running or self.progress[entry.id].status.state not in OPEN or self._prune(entry):
                    continue
                return entry
            if self.search is None or self.exhausted:
                return None
            count_before = len(self.plan.trials)
            self.plan = self.search.advance(self.plan, running)
            self._refresh(self.plan.trials[count_before:])
            self.exhausted = len(self.plan.trials) == count_before

    def _prune(self, entry: Entry) -> bool:
        """Record a trial without a worker as pruned if the search stops it; return whether it does."""
        decision = None if self.search is None else self.search.prune_decision(entry)
        if decision is None:
            return False
        with self.folder.lease(entry) as acquired:
            if acquired:
                self.folder.record(entry, "end", outcome="pruned", exit_code=None, **decision)
        self._refresh([entry])
        return True

    def _spawn_worker(self, number: int, slot: Slot, entry: Entry) -> subprocess.Popen[bytes]:
        arguments = [str(self.folder.path), entry.name, str(number), json.dumps(slot.cores), *self.flags]
        check_no_link(self._log_path(number))
        with self._log_path(number).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", WORKER, *arguments],
                env={**os.environ, **slot.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C must reach this process only.
                start_new_session=True,
                preexec_fn=partial(end_with_parent, os.getpid()),
            )

    def _reap_workers(self, screen: SweepScreen, *, stopping: bool) -> None:
        """Reap the workers that have ended. Raises RunError if one failed."""
        for number, worker in list(self.workers.items()):
            code = worker.process.poll()
            if code is None:
                continue
            del self.workers[number]
            self.exhausted = False
            if code < 0 and not stopping:
                screen.message(f"worker {number} was killed by {signal.Signals(-code).name}; its trial continues")
            elif code > 0:
                lines = self._log_path(number).read_text(encoding="utf-8", errors="replace").strip().splitlines()
                last = lines[-1] if lines else f"exit code {code}"
                raise RunError(
                    f"worker {number} of {self.folder.path} failed: {last} (its output: {self._log_path(number)}). The "
                    f"other trials were stopped; continue with: {self.plan.command}"
                )
            if not self._prune(worker.entry):
                self._refresh([worker.entry])

    def _signal_workers(self, number: signal.Signals) -> None:
        for worker in self.workers.values():
            worker.process.send_signal(number)

    def _log_path(self, number: int) -> Path:
        return self.folder.state_dir / f"worker-{number}.txt"
