"""The progress of all trials: a live table on a terminal, else a line for each change."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from rlvr_cli.core.files import number, tail_jsonl
from rlvr_cli.core.terminal import Cell, state_text, table_lines
from rlvr_cli.core.text import duration_in_words
from rlvr_cli.launch.stopping import say
from rlvr_cli.sweeps.folder import Entry, State, SweepDir, SweepPlan, TrialStatus

TAIL_BYTES = 16_384
Stamps = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class TrialProgress:
    """A trial with its latest numbers; ``seconds_left`` is estimated from its latest steps."""

    status: TrialStatus
    rollout: int
    reward: float | None
    accuracy: float | None
    seconds_left: float | None

    def as_json(self) -> dict[str, Any]:
        """Return the trial as in `rlvr sweep status --format json`."""
        entry, status = self.status.entry, self.status
        return {
            "name": entry.name,
            "id": entry.id,
            "method": entry.method,
            "seed": entry.seed,
            "varies": entry.varies,
            "state": status.state,
            "rollout": self.rollout,
            "rollouts": entry.rollouts,
            "reward": self.reward,
            "accuracy": self.accuracy,
            "seconds_left": self.seconds_left,
            "attempts": status.attempts,
            "failures": status.failures,
            "reason": status.reason,
        }


def trials_progress(sweep: SweepDir, plan: SweepPlan) -> list[TrialProgress]:
    """Return the progress of every trial in the sweep file."""
    return [_read_progress(sweep, status) for status in sweep.statuses(plan)]


def _read_progress(sweep: SweepDir, status: TrialStatus) -> TrialProgress:
    entry, run = status.entry, sweep.run_dir(status.entry)
    row: dict[str, Any] = next(reversed(tail_jsonl(run.metrics_path, TAIL_BYTES)), {})
    step = int(number(row.get("step")) or 0)
    rollout = step * entry.rollouts // entry.steps
    seconds_left = None
    if status.state == "running":
        timings = tail_jsonl(run.timings_path, TAIL_BYTES)
        seconds = [each for timing in timings if (each := number(timing.get("seconds"))) is not None]
        seconds_left = (entry.steps - step) * sum(seconds) / len(seconds) if seconds else None
    return TrialProgress(status, rollout, number(row.get("reward")), number(row.get("accuracy")), seconds_left)


class ProgressReader:
    """Reads the progress of a sweep's trials; a trial is only reread if its files changed."""

    def __init__(self, sweep: SweepDir) -> None:
        self.sweep = sweep
        self._cache: dict[str, tuple[Stamps, TrialProgress]] = {}

    def read(self, plan: SweepPlan, *, all_again: bool = False) -> list[TrialProgress]:
        """Return the progress of every trial in the sweep file.

        Args:
            all_again: reread every trial; the end of a worker releases a lease, which changes no file.
        """
        return [self._progress(plan, entry, all_again=all_again) for entry in plan.named]

    def _progress(self, plan: SweepPlan, entry: Entry, *, all_again: bool) -> TrialProgress:
        run = self.sweep.run_dir(entry)
        stamps = tuple(map(file_stamp, (self.sweep.attempts_path(entry), run.metrics_path, run.manifest_path)))
        cached = self._cache.get(entry.id)
        if all_again or cached is None or cached[0] != stamps:
            cached = stamps, _read_progress(self.sweep, self.sweep.status(plan, entry))
            self._cache[entry.id] = cached
        return cached[1]


def file_stamp(path: Path) -> tuple[int, int] | None:
    """Return the modification time, in nanoseconds, and the size of a file; None if it does not exist."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size


COLUMNS = ("trial", "status", "rollout", "reward", "accuracy", "left", "attempts")
ORDER: tuple[State, ...] = ("running", "evaluating", "failed", "interrupted", "queued", "waiting", "finished", "pruned")
# States that are not printed at the start.
SETTLED = ("finished", "failed", "pruned")
# Seconds between lines of the running trials, without a terminal.
PRINT_SECONDS = 60.0
SPARE_LINES = 6


class SweepScreen:
    """Shows the progress of the trials; a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._states: dict[str, str] = {}
        self._printed_at = self._started_at = time.monotonic()
        self._rollouts_at_start: int | None = None

    def __enter__(self) -> SweepScreen:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def message(self, text: str) -> None:
        """Print a line above the table."""
        say(self.console, text)

    def show(self, progress: Sequence[TrialProgress]) -> None:
        if self._live is not None:
            self._live.update(self._render(progress))
            return
        for trial in progress:
            name, state = trial.status.entry.name, trial.status.state
            previous = self._states.get(name, state if state in SETTLED else "waiting")
            if previous != state:
                self.message(_line(trial))
            self._states[name] = state
        if time.monotonic() - self._printed_at > PRINT_SECONDS:
            self._printed_at = time.monotonic()
            for trial in progress:
                if trial.status.state == "running":
                    self.message(_line(trial))

    def _render(self, progress: Sequence[TrialProgress]) -> RenderableType:
        trials = sorted(progress, key=lambda trial: ORDER.index(trial.status.state))
        room = max(self.console.height - SPARE_LINES, 5)
        more = len(trials) - room
        below = [Text(f"... and {more} more", style="dim")] if more > 0 else []
        return Group(table(trials[:room], self.console.width), *below, Text(self._summary(progress), style="dim"))

    def _summary(self, progress: Sequence[TrialProgress]) -> str:
        """Return the number of trials in each state, and the time left at the rate since the start."""
        done = sum(trial.rollout for trial in progress)
        planned = sum(
            trial.rollout if trial.status.state == "pruned" else trial.status.entry.rollouts for trial in progress
        )
        if self._rollouts_at_start is None:
            self._rollouts_at_start = done
        rate = (done - self._rollouts_at_start) / max(time.monotonic() - self._started_at, 1e-9)
        time_left = f", about {duration_in_words((planned - done) / rate)} left" if rate > 0 and planned > done else ""
        return f"{state_counts(progress)}; rollouts {done:,}/{planned:,}{time_left}"


def state_counts(progress: Sequence[TrialProgress]) -> str:
    """Return the number of trials in each state: `2 running, 3 waiting, 15 finished`."""
    counts = Counter(trial.status.state for trial in progress)
    return ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])


def table(progress: Sequence[TrialProgress], columns: int) -> Text:
    """Return a table with one row per trial, ``columns`` characters wide."""
    return Text.from_ansi("\n".join(table_lines(COLUMNS, [*map(cells, progress)], columns, colours=True)))


def cells(trial: TrialProgress) -> list[Cell]:
    """Return the cells of a trial, in the order of ``COLUMNS``."""
    entry, status = trial.status.entry, trial.status
    return [
        entry.name,
        state_text(status.state),
        f"{trial.rollout}/{entry.rollouts}",
        "-" if trial.reward is None else f"{trial.reward:.3f}",
        "-" if trial.accuracy is None else f"{trial.accuracy:.3f}",
        "-" if trial.seconds_left is None else duration_in_words(trial.seconds_left),
        str(status.attempts),
    ]


def _line(trial: TrialProgress) -> str:
    entry, status = trial.status.entry, trial.status
    fields = [f"{entry.name}: {status.state}", f"rollout {trial.rollout}/{entry.rollouts}"]
    fields += [f"reward {trial.reward:.3f}"] if trial.reward is not None else []
    fields += [f"accuracy {trial.accuracy:.3f}"] if trial.accuracy is not None else []
    fields += [f"{duration_in_words(trial.seconds_left)} left"] if trial.seconds_left is not None else []
    if status.reason and status.state in ("failed", "pruned", "running", "interrupted"):
        fields.append(status.reason if status.state in ("failed", "pruned") else f"failed before: {status.reason}")
    return "  ".join(fields)
