"""`rlvr runs watch`: progress of the running runs, as a table on a terminal, otherwise as lines."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlvr_cli.cli.options import RUNS, Runs, check_root_option
from rlvr_cli.cli.output import Format, echo, format_accuracy, format_number, format_reward, print_json
from rlvr_cli.core.terminal import is_terminal, table_lines, width
from rlvr_cli.core.text import escape_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

HEADER = ("run", "status", "rollouts", "reward", "accuracy", "entropy", "length", "tokens/s", "to go")


def watch(
    root: Runs = RUNS,
    show_all: Annotated[bool, typer.Option("--all", help="Also runs that are not running.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Show the current state and exit.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, max=3600, help="Polling interval.")
    ] = 2.0,
    form: Format = "table",
) -> None:
    """Watch the running runs, including those of sweeps, until Ctrl-C.

    Shows a live table on a terminal; otherwise a line for each change of a run; as JSON a line for each poll.
    """
    from rich.console import Console

    folder = check_root_option(root) or root
    watcher = RunWatcher(folder, show_all=show_all)
    terminal = is_terminal(sys.stdout)
    console = Console(markup=False, emoji=False, highlight=False, width=width())
    if once:
        rows = watcher()
        if form == "json":
            print_json(rows)
        else:
            console.print(render_table(rows, watcher.others, folder, console, all_rows=True))
        return
    with _sigterm_as_exit():
        if form == "json":
            while True:
                line = {"time": time.time(), "runs": watcher()}
                print(escape_json(json.dumps(line, ensure_ascii=False)), flush=True)
                time.sleep(every)
        elif terminal and not console.is_dumb_terminal:
            _show_live(watcher, folder, console, every)
        else:
            _print_changes(watcher, folder, every)


class RunWatcher:
    """Poll the runs that are running or were at an earlier poll. ``others``: number of other runs at the last poll."""

    def __init__(self, root: Path, *, show_all: bool) -> None:
        self.root, self.show_all = root, show_all
        self.others = 0
        self._seen: set[str] = set()

    def __call__(self) -> list[dict[str, Any]]:
        """Return a row per run, oldest first (:func:`rlvr_cli.runs.listing.read_live_row`)."""
        from rlvr_cli.runs.listing import read_live_row, read_runs, sort_by_creation

        try:
            runs = sort_by_creation(read_runs(self.root))
        except FileNotFoundError:
            # The folder may not exist before the first run, or was deleted.
            runs = []
        self._seen |= {run["name"] for run in runs if run["status"] == "running"}
        rows = [read_live_row(run) for run in runs if self.show_all or run["name"] in self._seen]
        self.others = len(runs) - len(rows)
        return rows


def render_table(
    rows: Sequence[dict[str, Any]], others: int, root: Path, console: Console, *, all_rows: bool = False
) -> RenderableType:
    """Return the table in the console's width, with as many runs as its height unless ``all_rows``."""
    from rich.console import Group
    from rich.text import Text

    if not rows:
        hint = f" (--all shows {others} more)" if others else ""
        return Text(f"No run is running in {root}{hint}.")
    # A row has a line at least.
    most = len(rows) if all_rows else min(len(rows), max(1, console.height - 2))
    for room in range(most, 0, -1):
        lines = table_lines(HEADER, [format_cells(row) for row in rows[:room]], console.width)
        if all_rows or len(lines) + (room < len(rows)) < console.height:
            break
    below = [Text(f"and {len(rows) - room} more")] if len(rows) > room else []
    return Group(Text("\n".join(lines)), *below)


def format_cells(row: dict[str, Any]) -> tuple[str, ...]:
    from rlvr_cli.core.text import format_duration

    seconds = row["seconds_left"]
    return (
        row["name"],
        f"{row['status']}, {row['alerts']}" if row["alerts"] else str(row["status"]),
        "/".join(format_number(row, name, "{:.0f}") or "-" for name in ("rollout", "rollouts_total")),
        format_reward(row),
        format_accuracy(row),
        format_number(row, "entropy", "{:.3f}") or "-",
        format_number(row, "length", "{:.1f}") or "-",
        format_number(row, "tokens_per_second", "{:,.0f}") or "-",
        "-" if seconds is None else format_duration(seconds),
    )


def _show_live(watcher: RunWatcher, root: Path, console: Console, every: float) -> None:
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(render_table(watcher(), watcher.others, root, console), refresh=True)
            time.sleep(every)


def _print_changes(watcher: RunWatcher, root: Path, every: float) -> None:
    """Print a line for each run whose status or step has changed since the last poll."""
    before: dict[str, Any] = {}
    rows = watcher()
    if not rows:
        echo(f"No run is running in {root}; waiting for one.", flush=True)
    while True:
        for row in rows:
            now = row["status"], row["step"]
            if before.get(row["name"]) != now:
                before[row["name"]] = now
                name, *cells = format_cells(row)
                numbers = "  ".join(f"{title} {cell}" for title, cell in zip(HEADER[2:], cells[1:], strict=True))
                echo(f"{name}  {cells[0]}  {numbers}", flush=True)
        time.sleep(every)
        rows = watcher()


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the terminal's cursor is restored."""

    def leave(number: int, frame: object) -> None:
        raise typer.Exit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
