"""The notebook: its cells run, in little, and what it shows is text that they printed."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from rlvr_cli import store
from tests.commands import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "results.ipynb"


def code() -> list[tuple[str, list[dict[str, object]]]]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [("".join(cell["source"]), cell["outputs"]) for cell in cells if cell["cell_type"] == "code"]


def test_its_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    first, *others = [source for source, _ in code()]
    small = first.replace('"lopti"), 20', '"lopti"), 2').replace(
        '"validation.problems": 60', '"validation.problems": 4, "rollout.prompts": 2, "rollout.group_size": 2'
    )
    assert small.count("rollout.prompts") == 1 and '"lopti"), 2\n' in small
    names: dict[str, object] = {}
    width = pd.get_option("display.width")
    try:
        for source in (small, *others):
            exec(source, names)  # noqa: S102
    finally:
        pd.set_option("display.width", width)
    assert list(store.runs("grpo", "lopti")["status"]) == ["finished"] * 2
