"""The lab bases that arms begin with: built once from their recipes, and checked before they are used."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlvr_cli.config.errors import RunError
from rlvr_cli.ledger.book import Book
from rlvr_cli.ledger.folders import Folders
from rlvr_cli.ledger.schema import LAB
from rlvr_cli.runs.checkpoints import file_hash

SEED = 0
MANIFEST = "lab_manifest.json"


def base_folder(name: str, recipe: Path, folders: Folders) -> Path:
    """Where the base of a recipe is kept: another recipe, another place. Raises UserError for no valid recipe."""
    from rlvr_cli.lab.recipe import load_recipe

    return folders.bases / f"{name}-{load_recipe(recipe).fingerprint()[:12]}"


def base_folders(names: Iterable[str], book: Book, folders: Folders) -> dict[str, Path]:
    """The folder of each base but `lab`, built or not."""
    return {name: base_folder(name, book.recipes[name], folders) for name in names if name != LAB}


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


def build_base(recipe: Path, folder: Path) -> None:
    """Build the base; the folder appears complete or not at all."""
    from rlvr_cli.lab.build import build
    from rlvr_cli.lab.recipe import load_recipe

    build(folder, recipe=load_recipe(recipe), seed=SEED)
