"""How far each trial is, and all of them on one screen: a live table on a terminal, else a line for each change."""

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
    """A trial with its last numbers; ``left`` are the seconds that it takes still, by its latest steps."""

    status: TrialStatus
    rollout: int
    reward: float | None
    accuracy: float | None
    left: float | None

    def as_json(self) -> dict[str, Any]:
        """The trial in `rlvr sweep status --format json`."""
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
            "seconds_left": self.left,
            "attempts": status.attempts,
            "failures": status.failures,
            "reason": status.reason,
        }


def trials_progress(sweep: SweepDir, plan: SweepPlan) -> list[TrialProgress]:
    """How far every trial is that the sweep file names."""
    return [_progress(sweep, status) for status in sweep.statuses(plan)]


def _progress(sweep: SweepDir, status: TrialStatus) -> TrialProgress:
    entry, run = status.entry, sweep.run_dir(status.entry)
    row: dict[str, Any] = next(reversed(tail_jsonl(run.metrics_path, TAIL_BYTES)), {})
    step = int(number(row.get("step")) or 0)
    rollout = step * entry.rollouts // entry.steps
    left = None
    if status.state == "running":
        timings = tail_jsonl(run.timings_path, TAIL_BYTES)
        seconds = [taken for timing in timings if (taken := number(timing.get("seconds"))) is not None]
        left = (entry.steps - step) * sum(seconds) / len(seconds) if seconds else None
    return TrialProgress(status, rollout, number(row.get("reward")), number(row.get("accuracy")), left)


class ProgressReader:
    """Reads how far the trials of a sweep are; a trial whose files have not changed is not read again."""

    def __init__(self, sweep: SweepDir) -> None:
        self.sweep = sweep
        self._read: dict[str, tuple[Stamps, TrialProgress]] = {}

    def read(self, plan: SweepPlan, *, all_again: bool = False) -> list[TrialProgress]:
        """Return the progress of every trial that the sweep file names.

        Args:
            all_again: read every trial: the end of a worker releases a lease, which changes no file.
        """
        return [self._progress(plan, entry, all_again=all_again) for entry in plan.named]

    def _progress(self, plan: SweepPlan, entry: Entry, *, all_again: bool) -> TrialProgress:
        run = self.sweep.run_dir(entry)
        stamps = tuple(map(file_stamp, (self.sweep.attempts_path(entry), run.metrics_path, run.manifest_path)))
        before = self._read.get(entry.id)
        if all_again or before is None or before[0] != stamps:
            before = stamps, _progress(self.sweep, self.sweep.status(plan, entry))
            self._read[entry.id] = before
        return before[1]


def file_stamp(path: Path) -> tuple[int, int] | None:
    """Return a file's time of modification, in nanoseconds, and its bytes; None where there is none."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size


COLUMNS = ("trial", "status", "rollout", "reward", "accuracy", "left", "attempts")
ORDER: tuple[State, ...] = ("running", "evaluating", "failed", "interrupted", "queued", "waiting", "finished", "pruned")
# Nothing to tell at the beginning.
SETTLED = ("finished", "failed", "pruned")
# Without a terminal, the running trials are told this often, in seconds.
EVERY = 60.0
SPARE_LINES = 6


class SweepScreen:
    """Shows how far the trials are. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._states: dict[str, str] = {}
        self._told = self._begun = time.monotonic()
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
        """One line, above the table."""
        say(self.console, text)

    def show(self, progress: Sequence[TrialProgress]) -> None:
        """Bring the screen up to date."""
        if self._live is not None:
            self._live.update(self._render(progress))
            return
        for one in progress:
            name, state = one.status.entry.name, one.status.state
            before = self._states.get(name, state if state in SETTLED else "waiting")
            if before != state:
                self.message(_line(one))
            self._states[name] = state
        if time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            for one in progress:
                if one.status.state == "running":
                    self.message(_line(one))

    def _render(self, progress: Sequence[TrialProgress]) -> RenderableType:
        shown = sorted(progress, key=lambda one: ORDER.index(one.status.state))
        room = max(self.console.height - SPARE_LINES, 5)
        more = len(shown) - room
        below = [Text(f"... and {more} more", style="dim")] if more > 0 else []
        return Group(table(shown[:room], self.console.width), *below, Text(self._summary(progress), style="dim"))

    def _summary(self, progress: Sequence[TrialProgress]) -> str:
        """How many trials are in which state, and when all will be done at the pace since the start."""
        done = sum(one.rollout for one in progress)
        wanted = sum(one.rollout if one.status.state == "pruned" else one.status.entry.rollouts for one in progress)
        if self._rollouts_at_start is None:
            self._rollouts_at_start = done
        pace = (done - self._rollouts_at_start) / max(time.monotonic() - self._begun, 1e-9)
        left = f", about {duration_in_words((wanted - done) / pace)} left" if pace > 0 and wanted > done else ""
        return f"{state_counts(progress)}; rollouts {done:,}/{wanted:,}{left}"


def state_counts(progress: Sequence[TrialProgress]) -> str:
    """`2 running, 3 waiting, 15 finished`."""
    number = Counter(one.status.state for one in progress)
    return ", ".join(f"{number[state]} {state}" for state in ORDER if number[state])


def table(progress: Sequence[TrialProgress], columns: int) -> Text:
    """One row a trial, in so many columns."""
    return Text.from_ansi("\n".join(table_lines(COLUMNS, [cells(one) for one in progress], columns, colours=True)))


def cells(one: TrialProgress) -> list[Cell]:
    """A trial as texts, by ``COLUMNS``."""
    entry, status = one.status.entry, one.status
    return [
        entry.name,
        state_text(status.state),
        f"{one.rollout}/{entry.rollouts}",
        "-" if one.reward is None else f"{one.reward:.3f}",
        "-" if one.accuracy is None else f"{one.accuracy:.3f}",
        "-" if one.left is None else duration_in_words(one.left),
        str(status.attempts),
    ]


def _line(one: TrialProgress) -> str:
    """A trial in one line of text."""
    entry, status = one.status.entry, one.status
    parts = [f"{entry.name}: {status.state}", f"rollout {one.rollout}/{entry.rollouts}"]
    parts += [f"reward {one.reward:.3f}"] if one.reward is not None else []
    parts += [f"accuracy {one.accuracy:.3f}"] if one.accuracy is not None else []
    parts += [f"{duration_in_words(one.left)} left"] if one.left is not None else []
    if status.reason and status.state in ("failed", "pruned", "running", "interrupted"):
        parts.append(status.reason if status.state in ("failed", "pruned") else f"failed before: {status.reason}")
    return "  ".join(parts)
