"""The progress of a sweep's trials: a live table on a terminal, else a line per change."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlvr_cli.core.files import finite, tail_jsonl
from rlvr_cli.core.terminal import Cell, format_state, table_lines
from rlvr_cli.core.text import format_duration
from rlvr_cli.launch.stopping import print_line
from rlvr_cli.sweeps.folder import State, SweepDir, SweepPlan, TrialStatus

TAIL_BYTES = 16_384
COLUMNS = ("trial", "status", "rollout", "reward", "accuracy", "left", "attempts")
ORDER: tuple[State, ...] = ("running", "evaluating", "failed", "interrupted", "queued", "waiting", "finished", "pruned")
# Final states, not printed at the start.
SETTLED = ("finished", "failed", "pruned")
# Seconds between lines of running trials, without a terminal.
PRINT_SECONDS = 60.0
SPARE_LINES = 6


@dataclass(frozen=True)
class TrialProgress:
    """A trial with its latest metrics; ``seconds_left`` is estimated from its latest steps."""

    status: TrialStatus
    rollout: int
    reward: float | None
    accuracy: float | None
    seconds_left: float | None

    def as_json(self) -> dict[str, Any]:
        entry, status = self.status.entry, self.status
        return {
            **{key: getattr(entry, key) for key in ("name", "id", "method", "seed", "varies")},
            "state": status.state,
            "rollout": self.rollout,
            "rollouts": entry.rollouts,
            **{key: getattr(self, key) for key in ("reward", "accuracy", "seconds_left")},
            **{key: getattr(status, key) for key in ("attempts", "failures", "reason")},
        }

    def cells(self) -> list[Cell]:
        return [
            self.status.entry.name,
            format_state(self.status.state),
            f"{self.rollout}/{self.status.entry.rollouts}",
            *("-" if value is None else f"{value:.3f}" for value in (self.reward, self.accuracy)),
            "-" if self.seconds_left is None else format_duration(self.seconds_left),
            str(self.status.attempts),
        ]

    def line(self) -> str:
        status = self.status
        fields = [f"{status.entry.name}: {status.state}", f"rollout {self.rollout}/{status.entry.rollouts}"]
        fields += [f"reward {self.reward:.3f}"] if self.reward is not None else []
        fields += [f"accuracy {self.accuracy:.3f}"] if self.accuracy is not None else []
        fields += [f"{format_duration(self.seconds_left)} left"] if self.seconds_left is not None else []
        if status.reason and status.state in ("failed", "pruned", "running", "interrupted"):
            fields.append(status.reason if status.state in SETTLED else f"failed before: {status.reason}")
        return "  ".join(fields)


def read_all_progress(sweep: SweepDir, plan: SweepPlan) -> list[TrialProgress]:
    return [read_progress(sweep, status) for status in sweep.statuses(plan)]


def read_progress(sweep: SweepDir, status: TrialStatus) -> TrialProgress:
    entry, run = status.entry, sweep.run_dir(status.entry)
    row: dict[str, Any] = next(reversed(tail_jsonl(run.metrics_path, TAIL_BYTES)), {})
    step = int(finite(row.get("step")) or 0)
    rollout = step * entry.rollouts // entry.steps
    seconds_left = None
    if status.state == "running":
        timings = tail_jsonl(run.timings_path, TAIL_BYTES)
        seconds = [value for timing in timings if (value := finite(timing.get("seconds"))) is not None]
        seconds_left = (entry.steps - step) * sum(seconds) / len(seconds) if seconds else None
    return TrialProgress(status, rollout, finite(row.get("reward")), finite(row.get("accuracy")), seconds_left)


class SweepScreen:
    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._states: dict[str, str] = {}
        self._printed_at = time.monotonic()

    def __enter__(self) -> SweepScreen:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def message(self, text: str) -> None:
        print_line(self.console, text)

    def show(self, progress: Sequence[TrialProgress]) -> None:
        """Update the table, or print a line for each change of state, and once a minute for each running trial."""
        if self._live is not None:
            self._live.update(self._render(progress))
            return
        is_due = time.monotonic() - self._printed_at > PRINT_SECONDS
        self._printed_at = time.monotonic() if is_due else self._printed_at
        for trial in progress:
            name, state = trial.status.entry.name, trial.status.state
            changed = self._states.get(name, state if state in SETTLED else "waiting") != state
            if changed or (is_due and state == "running"):
                self.message(trial.line())
            self._states[name] = state

    def _render(self, progress: Sequence[TrialProgress]) -> Text:
        """Return the trials that fit the screen, running ones first, and the number in each state."""
        trials = sorted(progress, key=lambda trial: ORDER.index(trial.status.state))
        room = max(self.console.height - SPARE_LINES, 5)
        rows = [trial.cells() for trial in trials[:room]]
        lines = table_lines(COLUMNS, rows, self.console.width, colours=True)
        lines += [f"... and {len(trials) - room} more"] if len(trials) > room else []
        return Text.from_ansi("\n".join([*lines, state_counts(progress)]))


def state_counts(progress: Sequence[TrialProgress]) -> str:
    """Return the number of trials in each state: `2 running, 3 waiting, 15 finished`."""
    counts = Counter(trial.status.state for trial in progress)
    return ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state])
