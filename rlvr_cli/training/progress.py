"""Progress of a training: a live display on a terminal, plain lines elsewhere, both in log.txt."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from rlvr_cli.collapse.alerts import active_alerts
from rlvr_cli.core.files import open_for_append
from rlvr_cli.core.terminal import Cell, table_lines, wrap_text
from rlvr_cli.core.text import escape_for_terminal
from rlvr_cli.evaluation.tables import metric_name, with_interval
from rlvr_cli.launch.stopping import StopRequest, print_line, tolerate_write_errors
from rlvr_cli.runs.folder import now
from rlvr_cli.store.metrics import GREEDY, accuracy_of

HEADLINES = (
    ("loss", "loss", "{:.4f}"),
    ("token_accuracy", "token accuracy", "{:.3f}"),
    ("reward", "reward", "{:.3f}"),
    ("accuracy", "accuracy", "{:.3f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("length", "length", "{:.1f}"),
    ("clipped", "clipped", "{:.2%}"),
    ("grad_norm", "grad norm", "{:.2f}"),
    ("timeouts", "timeouts", "{:.2%}"),
    ("alert", "alert", "{}"),
    ("tokens_per_second", "tokens/s", "{:,.0f}"),
)


class _Display(Live):
    """Live display that stops silently if its terminal closes, also in its refresh thread."""

    def refresh(self) -> None:
        with tolerate_write_errors(self.console):
            super().refresh()


class Reporter:
    """Display and log of a run's steps, a context manager."""

    def __init__(self, log_path: Path, *, console: Console, rollouts: int, steps: int) -> None:
        self.console, self.rollouts, self.steps = console, rollouts, steps
        self._log = open_for_append(log_path)
        self._live: Live | None = None
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("rollouts"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task("training", total=rollouts)
        self._activity = ""
        self._sampled = 0
        self._latest: dict[str, Any] = {}
        self._held_out: list[str] = []
        self._stop: StopRequest | None = None
        self._shown = 0.0

    def __enter__(self) -> Reporter:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._live = _Display(get_renderable=self._render, console=self.console, refresh_per_second=4)
            with tolerate_write_errors(self.console):
                self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        with contextlib.suppress(OSError):
            self._log.close()

    def watch_stop(self, stop: StopRequest) -> None:
        """Show a ``stop`` request in the live display, which a printed line would break."""
        if self._live is not None:
            self._stop, stop.announce = stop, False

    def end(self) -> None:
        if self._live is not None:
            self._activity, self._stop = "", None
            with tolerate_write_errors(self.console):
                self._live.stop()
            self._live = None

    def show(self, text: Cell) -> None:
        self.log(str(text))
        print_line(self.console, text)

    def log(self, text: str) -> None:
        """Write to log.txt only. Disk errors are ignored here: the records report them and end the run."""
        with contextlib.suppress(OSError):
            self._log.write(f"{now()} {escape_for_terminal(text)}\n")
            self._log.flush()

    def set_rollout(self, rollout: int) -> None:
        self._bar.update(self._task, completed=rollout)

    def add_sampled(self, tokens: int) -> None:
        self._sampled += tokens
        self.show_activity(f"sampling: {self._sampled:,} tokens")

    def show_activity(self, text: str) -> None:
        self._activity = text
        self._refresh()

    def show_evaluation(self, rollouts: int, metrics: Mapping[str, Mapping[str, Any]]) -> None:
        """Show the metrics of a held-out evaluation, with their intervals."""
        names = [name for name in (accuracy_of(metrics) or GREEDY, GREEDY, "length") if name in metrics]
        numbers = [f"{metric_name(name)} {with_interval(name, metrics[name])}" for name in dict.fromkeys(names)]
        line = f"held-out after rollout {rollouts}: {', '.join(numbers)}"
        self._held_out = [*self._held_out[:1], line]
        self.show_activity("")
        self.log(line)
        if self._live is None:
            print_line(self.console, line)

    def show_step(self, row: Mapping[str, Any], timing: Mapping[str, Any]) -> None:
        """Show the metrics of an optimizer step."""
        self._latest = {**row, **timing}
        if "clip_frac/low" in row:
            self._latest["clipped"] = row["clip_frac/low"] + row["clip_frac/high"]
        if row.get("verifier/timeout"):
            self._latest["timeouts"] = row["verifier/timeout"]
        if alerts := active_alerts(row):
            self._latest["alert"] = alerts
        self._sampled, self._activity = 0, ""
        self._bar.update(self._task, completed=row["rollout"] + (1 if row["last_update"] else 0))
        line = f"step {row['step']}/{self.steps}  rollout {row['rollout'] + 1}/{self.rollouts}  " + "  ".join(
            f"{title} {value}" for title, value in self._headlines()
        )
        self.log(line)
        if self._live is not None:
            self._refresh(force=True)
        else:
            print_line(self.console, line)

    def _headlines(self) -> list[tuple[str, str]]:
        latest = self._latest
        return [(title, form.format(latest[key])) for key, title, form in HEADLINES if latest.get(key) is not None]

    def _refresh(self, *, force: bool = False) -> None:
        if self._live is not None and (force or time.monotonic() - self._shown > 0.25):
            self._shown = time.monotonic()
            self._live.refresh()

    def _render(self) -> Group:
        columns = self.console.width
        lines = []
        if headlines := self._headlines():
            titles, values = zip(*headlines, strict=True)
            lines += table_lines(titles, [values], columns)
        lines += [piece for line in self._held_out for piece in wrap_text(line, columns).split("\n")]
        stop = self._stop.signal if self._stop is not None else None
        status = f"{stop.name}: saving after this step (Ctrl-C: stop at once)" if stop is not None else self._activity
        # Text, not markup: messages printed above the display change the markup mode.
        return Group(
            self._bar, *map(Text, lines), *([Text(status, style="yellow" if stop else "dim")] if status else [])
        )
