"""The lab bases that arms begin with: one a recipe and seed, built once and checked before it is used.

Each seed of the ledger has a base of its own. A method's result differs between bases of one recipe by more than
between seeds on one of them, so that an interval over seeds alone would be one about that base.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rlvr_cli.core.errors import RunError
from rlvr_cli.ledger.book import Book
from rlvr_cli.ledger.folders import Folders
from rlvr_cli.ledger.schema import LAB
from rlvr_cli.runs.checkpoints import file_hash

MANIFEST = "lab_manifest.json"


class Base(NamedTuple):
    """The base of a recipe, built with a seed."""

    recipe: str
    seed: int

    def __str__(self) -> str:
        return f"{self.recipe}, seed {self.seed}"


def base_folder(base: Base, recipe: Path, folders: Folders) -> Path:
    """Where a base is kept: another recipe or seed, another place. Raises UserError for no valid recipe."""
    from rlvr_cli.lab.recipe import load_recipe

    return folders.bases / f"{base.recipe}-s{base.seed}-{load_recipe(recipe).fingerprint()[:12]}"


def base_folders(bases: Iterable[Base], book: Book, folders: Folders) -> dict[Base, Path]:
    """The folder of each base but `lab`, built or not."""
    return {base: base_folder(base, book.recipes[base.recipe], folders) for base in sorted(bases) if base.recipe != LAB}


def is_built(folder: Path) -> bool:
    """Whether a whole base is in ``folder``.

    Raises:
        RunError: one that is damaged.
    """
    if not folder.exists():
        return False
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        whole = all(
            file_hash(folder / file) == manifest[key]
            for file, key in (("model.safetensors", "weights_sha256"), ("tokenizer.json", "tokenizer_sha256"))
        )
    except (OSError, ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise RunError(
            f"{folder}: this base is damaged (it is not what its {MANIFEST} says). Remove it, and run again."
        )
    return True


def build_base(recipe: Path, seed: int, folder: Path) -> None:
    """Build the base; the folder appears complete or not at all."""
    from rlvr_cli.lab.build import build
    from rlvr_cli.lab.recipe import load_recipe

    build(folder, recipe=load_recipe(recipe), seed=seed)
