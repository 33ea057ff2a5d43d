"""Sweep files for tests: written to a folder, read and expanded."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.sweeps.expand import Sweep, expand
from rlvr_cli.sweeps.spec import read_sweep


def sweep(folder: Path, text: str, *overrides: str) -> Sweep:
    """The sweep of a file ``s.yaml`` with this text."""
    path = folder / "s.yaml"
    path.write_text(text)
    return expand(read_sweep(path), [f"run.dir={folder}/runs", *overrides])


def names(folder: Path, text: str) -> list[str]:
    """The names of its trials."""
    return [trial.name for trial in sweep(folder, text).trials]


def problems(folder: Path, text: str, *overrides: str) -> list[str]:
    """What is wrong with it, the file's place reduced to its name and the alignment to one blank."""
    with pytest.raises(UserError) as caught:
        sweep(folder, text, *overrides)
    return [" ".join(line.replace(f"{folder}/", "").split()) for line in caught.value.problems]
