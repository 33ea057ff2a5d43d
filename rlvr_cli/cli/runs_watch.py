"""`rlvr runs watch`: the running runs as they go, in one table on a terminal, in lines elsewhere."""

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

from rlvr_cli.cli.options import RUNS, Runs, chosen_root
from rlvr_cli.cli.output import Format, accuracy, echo, figure, print_json, reward
from rlvr_cli.core.terminal import is_terminal, table_lines, width
from rlvr_cli.core.text import for_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

HEADER = ("run", "status", "rollouts", "reward", "accuracy", "entropy", "length", "tokens/s", "to go")
# What is left out first where the terminal is too narrow for all.
LEAST_NEEDED = ("tokens/s", "length", "entropy", "to go", "accuracy", "reward")
_GAP = 2
_SHORTEST_NAME = 12


def watch(
    root: Runs = RUNS,
    show_all: Annotated[bool, typer.Option("--all", help="Also runs that are not running.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Show them as they are now, and end.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, max=3600, help="Time between two looks.")
    ] = 2.0,
    form: Format = "table",
) -> None:
    """Watch the running runs, also those inside sweeps, until Ctrl-C.

    On a terminal a table that changes; elsewhere a line whenever a run has moved; as JSON a line for each look.
    """
    from rich.console import Console

    folder = chosen_root(root) or root
    look = RunWatcher(folder, show_all=show_all)
    terminal = is_terminal(sys.stdout)
    console = Console(markup=False, emoji=False, highlight=False, width=width())
    if once:
        rows = look()
        if form == "json":
            print_json(rows)
        else:
            console.print(screen(rows, look.others, folder, console, whole=True))
        return
    with _sigterm_as_exit():
        if form == "json":
            while True:
                line = {"time": time.time(), "runs": look()}
                print(for_json(json.dumps(line, ensure_ascii=False)), flush=True)
                time.sleep(every)
        elif terminal and not console.is_dumb_terminal:
            _live(look, folder, console, every)
        else:
            _lines(look, folder, every)


class RunWatcher:
    """Looks at the runs again and again: all that run now or ran at an earlier look.

    Attributes:
        others: how many runs were left out of the last look.
    """

    def __init__(self, root: Path, *, show_all: bool) -> None:
        self.root, self.show_all = root, show_all
        self.others = 0
        self._seen: set[str] = set()

    def __call__(self) -> list[dict[str, Any]]:
        """What is shown of each run, oldest first (:func:`rlvr_cli.runs.listing.live_row`)."""
        from rlvr_cli.runs.listing import by_creation, live_row, read_runs

        try:
            found = by_creation(read_runs(self.root))
        except FileNotFoundError:
            # The folder of runs may be made while one waits for the first of them, or be deleted.
            found = []
        self._seen |= {run["name"] for run in found if run["status"] == "running"}
        rows = [live_row(run) for run in found if self.show_all or run["name"] in self._seen]
        self.others = len(found) - len(rows)
        return rows


def screen(
    rows: Sequence[dict[str, Any]], others: int, root: Path, console: Console, *, whole: bool = False
) -> RenderableType:
    """The table at the console's width; of more runs than its height has room for the first, unless ``whole``."""
    from rich.console import Group
    from rich.text import Text

    if not rows:
        there = f" ({others} that {'is' if others == 1 else 'are'} not: --all)" if others else ""
        return Text(f"No run is running in {root}{there}.")
    room = len(rows) if whole or len(rows) <= console.height - 2 else max(1, console.height - 3)
    columns, cells = fitted([cells_of(row) for row in rows[:room]], console.width)
    table = Text("\n".join(table_lines(columns, cells, None)))
    below = [Text(f"and {len(rows) - room} more")] if len(rows) > room else []
    return Group(table, *below)


def cells_of(row: dict[str, Any]) -> tuple[str, ...]:
    """A run as texts, by ``HEADER``."""
    from rlvr_cli.core.text import duration_in_words

    left = row["seconds_left"]
    return (
        row["name"],
        f"{row['status']}, {row['alerts']}" if row["alerts"] else str(row["status"]),
        "/".join(figure(row, name, "{:.0f}") or "-" for name in ("rollout", "rollouts_total")),
        reward(row),
        accuracy(row),
        figure(row, "entropy", "{:.3f}") or "-",
        figure(row, "length", "{:.1f}") or "-",
        figure(row, "tokens_per_second", "{:,.0f}") or "-",
        "-" if left is None else duration_in_words(left),
    )


def fitted(cells: Sequence[tuple[str, ...]], width: int) -> tuple[list[str], list[list[str]]]:
    """The columns and cells that fit in ``width``: names are shortened in their middle, then columns left out."""
    kept = list(HEADER)
    while True:
        places = [HEADER.index(name) for name in kept]
        widths = [max(len(HEADER[place]), *(len(row[place]) for row in cells)) for place in places]
        room = width - sum(widths[1:]) - _GAP * (len(kept) - 1)
        dropped = next((name for name in LEAST_NEEDED if name in kept), None)
        if room >= min(widths[0], _SHORTEST_NAME) or dropped is None:
            break
        kept.remove(dropped)
    return kept, [[_shortened(row[0], max(room, 3)), *(row[place] for place in places[1:])] for row in cells]


def _shortened(name: str, width: int) -> str:
    """``name`` in at most ``width`` characters; its end tells runs of a sweep apart and is kept."""
    if len(name) <= width:
        return name
    end = (width - 2) * 2 // 3
    return f"{name[: width - 2 - end]}..{name[len(name) - end :]}"


def _live(look: RunWatcher, root: Path, console: Console, every: float) -> None:
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(screen(look(), look.others, root, console), refresh=True)
            time.sleep(every)


def _lines(look: RunWatcher, root: Path, every: float) -> None:
    """A line for each run that is elsewhere than it was at the look before."""
    before: dict[str, Any] = {}
    rows = look()
    if not rows:
        echo(f"No run is running in {root}; waiting for one.", flush=True)
    while True:
        for row in rows:
            now = row["status"], row["step"]
            if before.get(row["name"]) != now:
                before[row["name"]] = now
                name, *cells = cells_of(row)
                numbers = "  ".join(f"{title} {cell}" for title, cell in zip(HEADER[2:], cells[1:], strict=True))
                echo(f"{name}  {cells[0]}  {numbers}", flush=True)
        time.sleep(every)
        rows = look()


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Inside, SIGTERM leaves by an exception, so that the terminal gets its cursor back."""

    def leave(number: int, frame: object) -> None:
        raise typer.Exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
