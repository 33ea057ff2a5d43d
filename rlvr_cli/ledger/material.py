"""The numbers that claims take: which analyses of which trainings, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.ledger.folders import Folders
from rlvr_cli.ledger.measures import Reading
from rlvr_cli.ledger.schema import Call, Claim
from rlvr_cli.ledger.trials import Need
from rlvr_cli.sweeps.folder import Look, SweepDir


class Material:
    """What there is of the trainings in ``looks``.

    Attributes:
        failed: why analyses failed, by the files that they should have written.
    """

    def __init__(self, folders: Folders, looks: Mapping[Need, Look]) -> None:
        self.folder, self.sweep, self.looks = folders.measures, SweepDir(folders.sweep), looks
        self.failed: dict[Path, str] = {}
        self._read: dict[Path, dict[str, Any]] = {}

    def missing(self, claims: Iterable[Claim], seed_from: int) -> dict[Path, Reading]:
        """Every reading that ``claims`` want and that is not there, once, by its file."""
        wanted: dict[Path, Reading] = {}
        for claim in claims:
            for seed in claim.seeds_from(seed_from):
                for call in claim.calls():
                    if self.looks[Need(call.arm, seed)].trained:
                        reading = self._reading(call, seed)
                        wanted.setdefault(reading.path(self.folder), reading)
        return {path: reading for path, reading in wanted.items() if reading.read(self.folder) is None}

    def numbers(self, call: Call, seed: int) -> dict[str, Any]:
        """All numbers of an analysis of one training. Raises RunError where there are none, saying why."""
        look = self.looks[Need(call.arm, seed)]
        if not look.trained:
            raise RunError(f"its training failed: {look.reason}")
        reading = self._reading(call, seed)
        path = reading.path(self.folder)
        if path in self.failed:
            raise RunError(self.failed[path])
        if path not in self._read:
            found = reading.read(self.folder)
            if found is None:
                raise RunError(f"{path}: was there, and is no longer")
            self._read[path] = found
        return self._read[path]

    def _reading(self, call: Call, seed: int) -> Reading:
        entry = self.looks[Need(call.arm, seed)].entry
        return Reading.of(call, self.sweep.run_dir(entry), entry.id)
