"""Digests of a model's training problems, in its run, checkpoints and exports, so that evaluations detect overlap."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from rlvr_cli.core.files import write_text

FILE = "rlvr_training_problems.txt"
# Paths in a run or an exported model, and in a checkpoint.
_PATHS = (FILE, f"trainer/{FILE}")


def wording_digest(wording: str) -> str:
    """Return a digest of a problem's wording with normalised whitespace."""
    return hashlib.sha256(" ".join(wording.split()).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write_training_problems(folder: Path, digests: Iterable[str]) -> None:
    write_text(folder / FILE, "".join(f"{line}\n" for line in sorted({*digests})))


def read_training_problems(folder: Path) -> frozenset[str] | None:
    """Return the digests of the training problems of the model in ``folder``; None if unknown."""
    for path in (folder / name for name in _PATHS):
        if path.is_file():
            return frozenset(path.read_text(encoding="utf-8").split())
    return None
