"""Records that a test has changed, hashed again."""

from __future__ import annotations

from pathlib import Path

from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import FILE, Sealer
from rlvr_cli.runs.seal import write_seal


def reseal(folder: Path) -> None:
    """Make the records in a run's folder those that the run made."""
    write_seal(folder / FILE, {})
    Sealer(RunDir(folder)).seal()
