"""The runs in a folder, each in a few fields: what its manifest says, and whether its process still lives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.runs.directory import SUBMITTED, RunDir
from rlvr_cli.runs.locks import is_held

DAMAGED = "damaged"
# What a run can be; the last two are seen from outside and stand in no manifest.
STATUSES = (SUBMITTED, "running", "finished", "interrupted", "failed", "killed", DAMAGED)
FIELDS = ("method", "task", "model", "seed", "created", "finished", "rollout", "rollouts_total", "step", "steps_total")

# Of these, a manifest is not about to change; a network file system may tell seconds late that it has.
_AT_REST = ("finished", "interrupted", "failed")
# Younger than this by the file system's clock, a file may change again without another time, size or inode:
# time stamps are as coarse as two seconds on some file systems.
SETTLED_NS = 2_000_000_000


@dataclass(frozen=True)
class Entry:
    """What a manifest said (:func:`record`) when it had this signature (:func:`signature_of`)."""

    signature: str
    record: dict[str, Any]


def record(run: RunDir) -> dict[str, Any]:
    """The fields that are shown of a run, by its manifest alone. Raises RunError when that is missing or damaged."""
    manifest = run.read_manifest()
    status, last = manifest.get("status"), manifest.get("last_metrics")
    values = {name: manifest.get(name) for name in FIELDS}
    return {
        "status": _printable(status) if isinstance(status, str) else None,
        **{name: _printable(value) if isinstance(value, str) else value for name, value in values.items()},
        "last_metrics": last if isinstance(last, dict) else {},
    }


def summary(path: Path) -> dict[str, Any]:
    """What a run's manifest says, with `damage` (a reason, or None) and the status corrected for a dead process."""
    run = RunDir(path)
    try:
        return summarised(run.name, path, record(run))
    except RunError as error:
        return damaged(run.name, path, error)


def summarised(name: str, path: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """The summary of the run at ``path``, of which its manifest ``said`` this."""
    gone = said["status"] == "running" and not is_held(path)
    correction = {"status": "killed"} if gone else {}
    return {"name": _printable(name), "path": _printable(str(path)), "damage": None, **said, **correction}


def damaged(name: str, path: Path, error: RunError) -> dict[str, Any]:
    """The summary of a run whose manifest cannot be read."""
    place = {"name": _printable(name), "path": _printable(str(path))}
    return {**place, "damage": _printable(str(error)), "status": DAMAGED, "last_metrics": {}}


class Runs:
    """The runs under a folder; a manifest that has not changed since it was read is not read again.

    Args:
        known: entries by a run's name, that were settled when they were read.

    Attributes:
        reads: manifests that were read in the last :meth:`read`.
    """

    def __init__(self, root: Path, known: Mapping[str, Entry] | None = None) -> None:
        self.root = root
        self.known = dict(known or {})
        self.reads = 0

    def read(self, clock: int) -> list[dict[str, Any]]:
        """The summary of every run (:func:`run_folders`), by name.

        Args:
            clock: nanoseconds now, by the file system's clock; decides what is remembered.
        """
        found = run_folders(self.root)
        self.known = {name: entry for name, entry in self.known.items() if name in found}
        self.reads = 0
        summaries = [self._summary(name, path, clock) for name, path in found.items()]
        return [one for one in summaries if one is not None]

    def _summary(self, name: str, path: Path, clock: int) -> dict[str, Any] | None:
        """None for a run that was deleted in the meantime."""
        # Before the manifest is read: of what is written between the two, the signature is another.
        signature, changed = signature_of(RunDir(path).manifest_path)
        entry = self.known.pop(name, None)
        if entry is None or entry.signature != signature:
            self.reads += 1
            try:
                entry = Entry(signature, record(RunDir(path)))
            except RunError as error:
                return damaged(name, path, error) if path.exists() else None
        if entry.record["status"] in _AT_REST and signature and changed < clock - SETTLED_NS:
            self.known[name] = entry
        return summarised(name, path, entry.record)


def signature_of(path: Path) -> tuple[str, int]:
    """What the content of ``path`` cannot change without once it is settled, and when it last did, in nanoseconds.

    Inode, size, time of modification, and time of change, which is by the file system's own clock and which no program
    can set. Empty where there is no such file.
    """
    try:
        seen = path.stat()
    except OSError:
        return "", 0
    return f"{seen.st_ino} {seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns}", seen.st_ctime_ns


def run_folders(root: Path) -> dict[str, Path]:
    """Every folder in ``root`` that is, or was, a run, by its name; those inside a sweep's folder as `sweep/run`.

    Raises OSError where ``root`` cannot be read.
    """
    found: dict[str, Path] = {}
    for name in _folders(root):
        path = root / name
        if is_run(path):
            found[name] = path
        else:
            found |= {f"{name}/{inner}": path / inner for inner in _inner(path) if is_run(path / inner)}
    return dict(sorted(found.items()))


def check_root(root: Path) -> None:
    """Raise UserError where ``root`` is no folder that could hold runs."""
    if not root.exists():
        raise UserError(f"{root}: no such folder. Name the folder that holds the runs (run.dir).")
    if not root.is_dir():
        raise UserError(f"{root}: is a file. Name the folder that holds the runs (run.dir).")
    if is_run(root):
        raise UserError(f"{root}: is itself a run. `rlvr runs show {root}` shows it; --dir names the folder around it.")


def _folders(root: Path) -> list[str]:
    """Hidden folders are left out: those of other programs, and runs that are being replaced."""
    with os.scandir(root) as entries:
        return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]


def _inner(path: Path) -> list[str]:
    try:
        return _folders(path)
    except (PermissionError, FileNotFoundError):
        # May not be looked into, or is gone by now.
        return []


def is_run(path: Path) -> bool:
    """Whether a folder is, or was, a run."""
    run = RunDir(path)
    try:
        if run.manifest_path.exists():
            # A checkpoint's MANIFEST.json is the same file where a file system ignores case; a model lies beside it.
            return not (path / "config.json").exists()
        # A folder of configuration files may have a config.yaml as well.
        return run.config_path.exists() and run.checkpoints_dir.exists()
    except PermissionError:
        # What may not be looked into is no run for this reader.
        return False


def _printable(text: str) -> str:
    """``text`` with escapes for what no output can hold: bytes of a folder's name that are no text, half characters."""
    return text.encode("utf-8", "backslashreplace").decode()
