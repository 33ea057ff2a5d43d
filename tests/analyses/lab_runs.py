"""A short run of the lab, and what `rlvr analyze` says of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run


def trained(folders: pytest.TempPathFactory, settings: Sequence[str]) -> Path:
    """The folder that holds the run `lab`."""
    folder = folders.mktemp("runs")
    assert run(["train", f"run.dir={folder}", "run.name=lab", *settings]) == 0
    return folder


def analyzed(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> dict[str, Any]:
    """The JSON of an analysis of that run, with its frames and the single numbers as keys of their own."""
    capsys.readouterr()
    assert run(["analyze", *arguments, "--run", "lab", "--runs", str(root), "--format=json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {**found, **found["frames"], "summary": found["frames"]["summary"][0]}
