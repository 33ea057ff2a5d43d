"""Where the ledger keeps what it made, below the folder of the runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Scale = Literal["lab", "full"]


@dataclass(frozen=True)
class Folders:
    """`<run.dir>/ledger-lab` with the trainings, `ledger-bases` with the models that they begin with, and `ledger`.

    Attributes:
        root: run.dir, absolute: a base's path is a part of what a training is known by.
    """

    root: Path
    scale: Scale = "lab"

    @property
    def sweep_name(self) -> str:
        return f"ledger-{self.scale}"

    @property
    def sweep(self) -> Path:
        return self.root / self.sweep_name

    @property
    def bases(self) -> Path:
        return self.root / "ledger-bases"

    @property
    def own(self) -> Path:
        return self.root / "ledger"

    @property
    def measures(self) -> Path:
        return self.own / "measures"

    def results(self, seed_from: int) -> Path:
        """The verdicts of the set of seeds that begins with ``seed_from``."""
        return self.own / f"{self.scale}-seeds-{seed_from}.json"

    def sessions(self, seed_from: int) -> Path:
        """How long each time of running took, of that set."""
        return self.own / f"{self.scale}-seeds-{seed_from}-sessions"
