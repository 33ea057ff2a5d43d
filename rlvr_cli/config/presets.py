"""The presets of models and tasks: YAML files that ship with the package."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from rlvr_cli.core.yaml import Document, parse, read_text

PRESETS = Path(__file__).parent / "presets"


@cache
def preset_document(folder: str, name: str) -> Document:
    """The parsed file of a preset, with the line of each key."""
    return parse(read_text(PRESETS / folder / f"{name}.yaml"))
