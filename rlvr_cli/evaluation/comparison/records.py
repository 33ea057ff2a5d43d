"""A run as the comparison knows it, and arms: the runs that differ in nothing but the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.config.schema import Config
from rlvr_cli.core.text import some
from rlvr_cli.runs.directory import RunDir


@dataclass(frozen=True)
class ComparedRun:
    """One run.

    Attributes:
        values: the value of every key of ``config``, by its dotted name.
        place: of the word of the command line that named it, from 0.
    """

    run: RunDir
    config: Config
    values: dict[str, Any]
    manifest: dict[str, Any]
    place: int

    @property
    def path(self) -> str:
        return str(self.run.path)

    @property
    def seed(self) -> int:
        return self.config.run.seed


@dataclass(frozen=True, order=True)
class Replicate:
    """What a run of one arm shares with its partner of another: the seed, and whatever else varies within arms.

    ``rest`` says the latter as `key=value ...`; empty where the runs of an arm differ in the seed alone.
    """

    seed: int
    rest: str = ""

    def __str__(self) -> str:
        return f"seed {self.seed} {self.rest}".rstrip()


@dataclass(frozen=True)
class Arm:
    """Runs that are one thing tried several times; ``runs`` by their replicate, in its order."""

    name: str
    method: str
    runs: dict[Replicate, ComparedRun]


def few(names: Sequence[str]) -> str:
    """Up to four names; of more than that three, and how many more there are."""
    return some(names, 4 if len(names) <= 4 else 3)
