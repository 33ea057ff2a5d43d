"""The numbers of an analysis of one training: computed once, and kept under all that decides them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.analyses.base import AnalysisInput
from rlvr_cli.analyses.request import analysis_of, options_of
from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import write_json
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.text import did_you_mean, some
from rlvr_cli.ledger.jobs import Job
from rlvr_cli.ledger.schema import At, Call, Claim
from rlvr_cli.ledger.trainings import ArmSeed, Folders
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.seal import file_hash
from rlvr_cli.sweeps.folder import SweepDir, TrialStatus

SHOWN = 12
_SIZE = 16


def short_hash(value: Any) -> str:
    """A hash of JSON values, 16 hexadecimal digits."""
    return text_digest(json.dumps(value, sort_keys=True))[:_SIZE]


class NoValue(RunError):
    """What is measured did not occur in a run: the analysis says null."""


@dataclass(frozen=True)
class RunAnalysis:
    """One analysis of one run, of which claims take numbers.

    Attributes:
        training: by what the run is known, the hash of its configuration.
        options: all keys of the analysis, resolved.
    """

    run: RunDir
    training: str
    analysis: str
    options: dict[str, Any]
    at: At

    @staticmethod
    def of(call: Call, run: RunDir, training: str) -> RunAnalysis:
        """What ``call`` wants of ``run``."""
        options = options_of(call.analysis, call.options).model_dump(mode="json")
        return RunAnalysis(run, training, call.analysis, options, call.at)

    def key(self) -> dict[str, Any]:
        """All that decides the numbers."""
        return {
            "training": self.training,
            # A training that was repeated, on another machine perhaps, is measured again.
            "metrics": file_hash(self.run.metrics_path),
            "analysis": self.analysis,
            "options": self.options,
            "rollout": self.at.rollout,
            "step": self.at.step,
            "version": analysis_of(self.analysis).version,
        }

    def path(self, folder: Path) -> Path:
        """The file of the measure."""
        return folder / self.analysis / f"{self.run.name}-{short_hash(self.key())}.json"

    def job(self, folder: Path) -> Job:
        """What computes it."""
        arguments = {"run": str(self.run.path), "out": str(self.path(folder)), "key": self.key()}
        return Job(f"{self.analysis} of {self.run.name}", f"{__name__}:compute", arguments)

    def read(self, folder: Path) -> dict[str, Any] | None:
        """Its numbers; None where they are not there, or the file is not what was written."""
        try:
            kept = json.loads(self.path(folder).read_text(encoding="utf-8"))
            if kept["key"] == self.key() and kept["check"] == short_hash(kept["numbers"]):
                numbers: dict[str, Any] = kept["numbers"]
                return numbers
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return None


def compute(run: str, out: str, key: Mapping[str, Any]) -> None:
    """Carry out the job of a reading: write the numbers that have this key to the file ``out``.

    Raises:
        UserError: the run does not hold what the analysis needs.
        RunError: the analysis gave what no file can hold.
    """
    path, written_to = Path(run), Path(out)
    subject = AnalysisInput((RunDir(path),), path.parent, key["rollout"], key["step"])
    begun = time.perf_counter()
    found = analysis_of(key["analysis"]).measure(subject, options_of(key["analysis"], key["options"]))
    seconds = round(time.perf_counter() - begun, 2)
    try:
        # As it will be read: tuples are lists, numbers as keys are text.
        numbers = json.loads(json.dumps(found.numbers, allow_nan=False))
    except ValueError as error:
        raise RunError(f"{key['analysis']}: its numbers are not all finite ({error}).") from error
    written_to.parent.mkdir(parents=True, exist_ok=True)
    written = {"key": key, "numbers": numbers, "notes": list(found.notes), "seconds": seconds}
    write_json(written_to, {**written, "check": short_hash(numbers)})


def number_of(numbers: Mapping[str, Any], name: str, absent: float | None) -> float:
    """The number ``name``: of the summary, or with dots a path into all numbers; true is 1.

    Raises:
        NoValue: it is null, and ``absent`` is None.
        RunError: there is none of that name, or it is no number.
    """
    if "." not in name:
        summary = numbers.get("summary", {})
        if name not in summary:
            hint = did_you_mean(name, summary) or f" It has: {some(list(summary), SHOWN)}."
            raise RunError(f"{name}: the summary has no such number.{hint}")
        value = summary[name]
    else:
        value = numbers
        for part in name.split("."):
            value = _inside(value, part, name)
    if value is None:
        if absent is None:
            raise NoValue(f"{name} has no value (null)")
        return absent
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise RunError(f"{name}: is no number ({str(value)[:40]}).")
    return float(value)


def _inside(value: Any, part: str, name: str) -> Any:
    try:
        return value[int(part)] if isinstance(value, list) else value[part]
    except (KeyError, IndexError, ValueError, TypeError):
        raise RunError(f"{name}: there is no {part} in it.") from None


class AnalysisNumbers:
    """The numbers that analyses gave of the trainings in ``statuses``.

    Attributes:
        failed: why analyses failed, by the files that they should have written.
    """

    def __init__(self, folders: Folders, statuses: Mapping[ArmSeed, TrialStatus]) -> None:
        self.folder, self.sweep, self.statuses = folders.measures, SweepDir(folders.sweep), statuses
        self.failed: dict[Path, str] = {}
        self._read: dict[Path, dict[str, Any]] = {}

    def missing(self, claims: Iterable[Claim], seed_from: int) -> dict[Path, RunAnalysis]:
        """Every reading that ``claims`` want and that is not there, once, by its file."""
        wanted: dict[Path, RunAnalysis] = {}
        for claim in claims:
            for seed in claim.seeds_from(seed_from):
                for call in claim.calls():
                    if self.statuses[ArmSeed(call.arm, seed)].trained:
                        reading = self._reading(call, seed)
                        wanted.setdefault(reading.path(self.folder), reading)
        return {path: reading for path, reading in wanted.items() if reading.read(self.folder) is None}

    def numbers(self, call: Call, seed: int) -> dict[str, Any]:
        """All numbers of an analysis of one training. Raises RunError where there are none, saying why."""
        status = self.statuses[ArmSeed(call.arm, seed)]
        if not status.trained:
            raise RunError(f"its training failed: {status.reason}")
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

    def _reading(self, call: Call, seed: int) -> RunAnalysis:
        entry = self.statuses[ArmSeed(call.arm, seed)].entry
        return RunAnalysis.of(call, self.sweep.run_dir(entry), entry.id)
