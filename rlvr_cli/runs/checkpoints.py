"""Atomic checkpoints: written to a temporary folder, hashed, renamed, and verified before use.

Hashes are verified only of checkpoints to load, since hashing a large model takes minutes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import fsync, replace_folder
from rlvr_cli.runs.seal import BadSeal, compute_entry, find_file_damage, read_seal_file, write_seal

MANIFEST = "MANIFEST.json"
STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files have the recorded sizes. ``step`` counts optimizer steps."""

    step: int
    path: Path


@dataclass(frozen=True)
class Damaged:
    step: int
    path: Path
    reason: str


def write_checkpoint(directory: Path, step: int, write: Callable[[Path], None]) -> Checkpoint:
    """Call ``write`` with a temporary folder, then rename it to ``directory/step-N``.

    A kill at any moment leaves no ``step-N`` or a complete one. Replaces an existing (damaged) ``step-N``. Raises
    OSError for disk errors, without leaving partial files.
    """
    _remove_leftovers(directory)
    final = directory / f"step-{step}"
    with replace_folder(final) as aside:
        write(aside)
        files = sorted(path for path in aside.rglob("*") if path.is_file())
        for path in files:
            fsync(path)
        write_seal(
            aside / MANIFEST, {path.relative_to(aside).as_posix(): compute_entry(path) for path in files}, step=step
        )
        for folder in [path for path in aside.rglob("*") if path.is_dir()]:
            fsync(folder)
    return Checkpoint(step, final)


def find_damage(path: Path, *, hashed: bool = True) -> str | None:
    """Return the damage of the checkpoint at ``path``, or None, by sizes and, if ``hashed``, hashes."""
    try:
        manifest = read_seal_file(path / MANIFEST)
    except BadSeal as problem:
        return f"{MANIFEST} {problem}"
    if path.name != f"step-{manifest.get('step')}":
        return f"{MANIFEST} is of step {manifest.get('step')}"
    damages = ((name, find_file_damage(path / name, entry, hashed=hashed)) for name, entry in manifest["files"].items())
    return next((f"{name} {damage}" for name, damage in damages if damage), None)


def check_intact(path: Path) -> None:
    if damage := find_damage(path):
        raise UserError(f"{path}: this checkpoint is damaged: {damage}.")


def scan_checkpoints(directory: Path, *, hashed: int = 0) -> list[Checkpoint | Damaged]:
    """Verify every ``step-N``, newest first: the sizes, and the hashes until ``hashed`` are intact."""
    entries: list[Checkpoint | Damaged] = []
    for step, path in sorted(_list_steps(directory), reverse=True):
        reason = find_damage(path, hashed=hashed > 0)
        entries.append(Checkpoint(step, path) if reason is None else Damaged(step, path, reason))
        hashed -= reason is None
    return entries


def valid_checkpoints(directory: Path) -> list[Checkpoint]:
    """Return the checkpoints with intact sizes, newest first."""
    return [entry for entry in scan_checkpoints(directory) if isinstance(entry, Checkpoint)]


def keep_newest(directory: Path, count: int, *, step: int) -> None:
    """Delete the checkpoints before ``step`` except the newest ``count - 1``."""
    older = sorted(entry for entry in _list_steps(directory) if entry[0] < step)
    for _, path in older[: max(0, len(older) - (count - 1))]:
        _discard(path)


def _list_steps(directory: Path) -> list[tuple[int, Path]]:
    named = ((STEP.fullmatch(path.name), path) for path in directory.glob("step-*"))
    return [(int(match[1]), path) for match, path in named if match and path.is_dir()]


def _discard(path: Path) -> None:
    # An interrupted deletion must not look like damage.
    trash = path.with_name(f".trash-{path.name}-{os.getpid()}")
    shutil.rmtree(trash, ignore_errors=True)
    path.rename(trash)
    shutil.rmtree(trash)


def _remove_leftovers(directory: Path) -> None:
    for pattern in (".step-*.new-*", ".step-*.old-*", ".trash-step-*"):
        for path in directory.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
