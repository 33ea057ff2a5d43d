"""The runs in a folder, each in a few fields: what its manifest says, and whether its process still lives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.runs.directory import SUBMITTED, RunDir
from rlvr_cli.runs.locks import is_held

DAMAGED = "damaged"
# What a run can be; the last two are seen from outside and stand in no manifest.
STATUSES = (SUBMITTED, "running", "finished", "interrupted", "failed", "killed", DAMAGED)
FIELDS = ("method", "task", "model", "seed", "created", "finished", "rollout", "rollouts_total", "step", "steps_total")


def summary(path: Path, name: str | None = None) -> dict[str, Any]:
    """What a run's manifest says, with `damage` (a reason, or None) and the status corrected for a dead process.

    Args:
        name: that the run goes by; default: its folder's.
    """
    run = RunDir(path)
    place = {"name": _printable(name or run.name), "path": _printable(str(path))}
    try:
        manifest = run.read_manifest()
    except RunError as error:
        return {**place, "damage": _printable(str(error)), "status": DAMAGED, "last_metrics": {}}
    status, last = manifest.get("status"), manifest.get("last_metrics")
    if status == "running" and not is_held(path):
        status = "killed"
    values = {field: manifest.get(field) for field in FIELDS}
    return {
        **place,
        "damage": None,
        "status": _printable(status) if isinstance(status, str) else None,
        **{field: _printable(value) if isinstance(value, str) else value for field, value in values.items()},
        "last_metrics": last if isinstance(last, dict) else {},
    }


def read_runs(root: Path) -> list[dict[str, Any]]:
    """The summary of every run in ``root`` (:func:`run_folders`), by name. Raises OSError where it cannot be read."""
    found = [(path, summary(path, name)) for name, path in run_folders(root).items()]
    # One that was deleted in the meantime is not damaged.
    return [one for path, one in found if one["damage"] is None or path.exists()]


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
