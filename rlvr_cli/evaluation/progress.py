"""Show the progress of an evaluation: a bar on a terminal, otherwise a line every 10 seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from rlvr_cli.core.text import escape_for_terminal
from rlvr_cli.launch.stopping import print_line, show_progress_bar

if TYPE_CHECKING:
    from rlvr_cli.evaluation.sample_store import Progress, ProgressCallback

_SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class ProgressView:
    """Progress output: ``watch`` yields an evaluation's callback by label, ``say`` prints a line."""

    watch: Callable[[str], AbstractContextManager[ProgressCallback]]
    say: Callable[[str], None]


@contextmanager
def progress_view(noun: str) -> Iterator[ProgressView]:
    """Yield a view on stderr; after Ctrl-C a line states that the samples (``noun``) are kept."""
    console = Console(stderr=True, highlight=False, markup=False)
    watch = _bar if console.is_terminal else _lines
    try:
        yield ProgressView(lambda label: watch(console, label), lambda line: print_line(console, line))
    except KeyboardInterrupt:
        print_line(console, f"stopped: the {noun} so far are kept, and the same command continues")
        raise


@contextmanager
def _bar(console: Console, label: str) -> Iterator[ProgressCallback]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("samples"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
    )
    bar = Bar(*columns, console=console, transient=True, expand=True)
    with show_progress_bar(bar):
        task = bar.add_task(escape_for_terminal(label), total=None, rate="")
        started = time.monotonic()

        def show(progress: Progress) -> None:
            rate = progress.tokens / max(1e-9, time.monotonic() - started)
            text = f"{rate:,.0f} tokens/s" if progress.tokens else ""
            bar.update(task, total=progress.planned, completed=progress.done, rate=text)

        yield show


@contextmanager
def _lines(console: Console, label: str) -> Iterator[ProgressCallback]:
    started = time.monotonic()
    last = started

    def show(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        first = progress.done == progress.earlier
        if not first and progress.done < progress.planned and now - last < _SECONDS_BETWEEN_LINES:
            return
        last = now
        line = f"{label}: {progress.done} of {progress.planned} samples"
        if first and progress.earlier:
            line += " on disk from before"
        elif progress.tokens:
            line += f", {progress.tokens / max(1e-9, now - started):,.0f} tokens/s, {now - started:.0f} s"
        print_line(console, line)

    yield show
