"""Checkpoints that are complete or absent: written aside, hashed, renamed into place, verified before use."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.files import fsync, write_text
from rlvr_cli.core.hashes import text_digest

MANIFEST = "MANIFEST.json"
STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every file is as it was written. ``step`` counts optimizer steps."""

    step: int
    path: Path


@dataclass(frozen=True)
class Damaged:
    """A checkpoint that must not be used, and why."""

    step: int
    path: Path
    reason: str


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_checkpoint(directory: Path, step: int, write: Callable[[Path], None]) -> Checkpoint:
    """Let ``write`` fill a folder aside, then make it ``directory/step-N`` in one rename.

    A process killed at any moment leaves either no ``step-N`` or a complete one. An existing ``step-N`` (a damaged
    one that was resumed past) is replaced. Raises OSError when the disk refuses; nothing half-written stays.
    """
    _remove_leftovers(directory)
    aside = directory / f".tmp-step-{step}-{os.getpid()}"
    aside.mkdir()
    try:
        write(aside)
        files = sorted(path for path in aside.rglob("*") if path.is_file())
        entries = {
            path.relative_to(aside).as_posix(): {"size": path.stat().st_size, "sha256": file_hash(path)}
            for path in files
        }
        for path in files:
            fsync(path)
        write_text(aside / MANIFEST, _manifest_text(step, entries))
        for folder in [path for path in aside.rglob("*") if path.is_dir()]:
            fsync(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    final = directory / f"step-{step}"
    if final.exists():
        _discard(final)
    aside.rename(final)
    fsync(directory)
    return Checkpoint(step, final)


def find_damage(path: Path) -> str | None:
    """Why the checkpoint at ``path`` cannot be trusted; None when every listed file has its size and hash."""
    try:
        text = (path / MANIFEST).read_text(encoding="utf-8")
        manifest = json.loads(text)
        step, entries = manifest["step"], manifest["files"]
        expected = [(name, entry["size"], entry["sha256"]) for name, entry in entries.items()]
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"
    if text != _manifest_text(step, entries):
        return f"{MANIFEST} was altered (its own hash differs)"
    if path.name != f"step-{step}":
        return f"{MANIFEST} is of step {step}"
    for name, size, sha256 in expected:
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, not {size}"
        if file_hash(file) != sha256:
            return f"{name} was altered (its hash differs)"
    return None


def _manifest_text(step: int, entries: dict[str, dict[str, Any]]) -> str:
    content = {"step": step, "files": entries}
    own = text_digest(json.dumps(content, sort_keys=True))
    return json.dumps({**content, "sha256": own}, indent=2) + "\n"


def survey(directory: Path) -> list[Checkpoint | Damaged]:
    """Every ``step-N`` under ``directory``, newest first, each verified."""
    found: list[Checkpoint | Damaged] = []
    for path in directory.glob("step-*") if directory.is_dir() else ():
        match = STEP.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        step, reason = int(match[1]), find_damage(path)
        found.append(Checkpoint(step, path) if reason is None else Damaged(step, path, reason))
    return sorted(found, key=lambda entry: -entry.step)


def valid_checkpoints(directory: Path) -> list[Checkpoint]:
    """The checkpoints that can be used, newest first."""
    return [entry for entry in survey(directory) if isinstance(entry, Checkpoint)]


def keep_newest(directory: Path, count: int, *, step: int) -> None:
    """Delete the checkpoints before ``step`` but for the newest ``count - 1``: with ``step`` itself, ``count`` stay."""
    older = sorted(entry for entry in _steps(directory) if entry[0] < step)
    for _, path in older[: max(0, len(older) - (count - 1))]:
        _discard(path)


def _steps(directory: Path) -> list[tuple[int, Path]]:
    return [(int(match[1]), path) for path in directory.glob("step-*") if (match := STEP.fullmatch(path.name))]


def _discard(path: Path) -> None:
    # Renamed first: a process killed while deleting must not leave a half-deleted folder that looks like damage.
    trash = path.with_name(f".trash-{path.name}-{os.getpid()}")
    shutil.rmtree(trash, ignore_errors=True)
    path.rename(trash)
    shutil.rmtree(trash)


def _remove_leftovers(directory: Path) -> None:
    for path in [*directory.glob(".tmp-step-*"), *directory.glob(".trash-step-*")]:
        shutil.rmtree(path, ignore_errors=True)
