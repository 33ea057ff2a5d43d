"""What an analysis is given and what it gives. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_cli.analysis.saved_rollout import SavedRollout, find_saved_rollout
from rlvr_cli.runs.directory import RunDir

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Subject:
    """What is analysed.

    Attributes:
        runs: in the order given; no two are the same.
        root: folder that holds the runs.
        rollout: its number, from 0; None for the newest that can be used.
        step: of the checkpoint; None for the newest.
    """

    runs: tuple[RunDir, ...]
    root: Path
    rollout: int | None = None
    step: int | None = None

    @property
    def run(self) -> RunDir:
        """The one run of an analysis that takes one."""
        return self.runs[0]

    def saved(self) -> SavedRollout:
        """The rollout and the policies around it. Raises UserError as `find_saved_rollout`."""
        return find_saved_rollout(str(self.run.path), self.root, rollout=self.rollout, step=self.step)


def told_apart(runs: Sequence[RunDir]) -> list[str]:
    """The runs' names; the path of one whose name another has too."""
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else str(run.path) for run in runs]


@dataclass(frozen=True)
class Table:
    """Numbers for people: ``rows`` have as many cells as ``header``."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Findings:
    """What an analysis found.

    Attributes:
        headline: the main number in one sentence.
        numbers: JSON values, all that was computed; ``summary`` in it holds the scalars by which runs are compared
            and which the ledger's claims name.
        tables: for people.
        reading: a paragraph on how to read the figure, and what the paper saw.
        draw: makes the figure, inside ``results.figure.style()``.
        notes: what weakens the numbers here.
    """

    headline: str
    numbers: dict[str, Any]
    tables: tuple[Table, ...]
    reading: str
    draw: Callable[[], Figure]
    notes: tuple[str, ...] = ()
