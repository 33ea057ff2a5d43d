"""Record a model's training problems, so that an evaluation can report overlaps.

A run has a file of their hashes, which is copied to its checkpoints and the exported model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from rlvr_cli.core.files import write_text

FILE = "rlvr_training_problems.txt"
# Its path in a run or an exported model, and in a checkpoint.
_PLACES = (FILE, f"trainer/{FILE}")


def wording_hash(wording: str) -> str:
    """Return the hash of a problem's wording, with normalised white space."""
    return hashlib.sha256(" ".join(wording.split()).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write_training_problems(folder: Path, hashes: Iterable[str]) -> None:
    """Write the hashes of the problems on which the model in ``folder`` was trained."""
    write_text(folder / FILE, "".join(f"{line}\n" for line in sorted({*hashes})))


def training_problems(folder: Path) -> frozenset[str] | None:
    """Return the hashes of the training problems of the model in ``folder``; None if unknown."""
    for path in (folder / name for name in _PLACES):
        if path.is_file():
            return frozenset(path.read_text(encoding="utf-8").split())
    return None
