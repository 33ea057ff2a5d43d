"""Record the problems that a model was trained on, so that an evaluation can report those among its problems.

A run has a hash of each in a file, which its checkpoints and the exported model carry along.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from rlvr_cli.core.files import write_text

FILE = "rlvr_training_problems.txt"
# Where it is in a run or an exported model, and in a checkpoint.
_PLACES = (FILE, f"trainer/{FILE}")


def wording_hash(wording: str) -> str:
    """The hash of a problem's wording; line breaks and runs of blanks do not matter."""
    return hashlib.sha256(" ".join(wording.split()).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def write_training_problems(folder: Path, hashes: Iterable[str]) -> None:
    """Write the hashes of the problems on which the model in ``folder`` was trained."""
    write_text(folder / FILE, "".join(f"{line}\n" for line in sorted({*hashes})))


def training_problems(folder: Path) -> frozenset[str] | None:
    """The hashes of the problems that the model in ``folder`` was trained on; None where nothing says."""
    for path in (folder / name for name in _PLACES):
        if path.is_file():
            return frozenset(path.read_text(encoding="utf-8").split())
    return None
