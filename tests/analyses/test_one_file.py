"""An analysis is one file: a test adds one, and nothing else of the package names it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlvr_cli.analyses
from rlvr_cli.analyses.base import analyses
from rlvr_cli.cli.app import run
from tests.analyses.lab_runs import trained

PAGE = Path(__file__).parents[2] / "docs" / "analyses" / "README.md"
FILE = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "lengths.py").write_text(FILE)
    monkeypatch.setattr(rlvr_cli.analyses, "__path__", [*rlvr_cli.analyses.__path__, str(tmp_path)])
    analyses.cache_clear()
    yield
    sys.modules.pop("rlvr_cli.analyses.lengths", None)
    analyses.cache_clear()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = ["train.rollouts=2", "rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=8"]
    return trained(tmp_path_factory, [*settings, "task.train_size=16", "run.threads=1"])


def test_one_file_is_listed_explained_run_and_measured(
    added: None, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["analyze"]) == 0
    listed = capsys.readouterr().out
    assert "how long completions are" in listed and "lengths rollouts=" in listed

    assert run(["analyze", "lengths", "rolouts=3"]) == 2
    assert "unknown key. Did you mean `rollouts`?" in capsys.readouterr().err
    assert run(["analyze", "lengts", "--run", "lab"]) == 2
    assert "Did you mean `lengths`?" in capsys.readouterr().err

    assert run(["analyze", "lengths", "rollouts=1", "--run", "lab", "--runs", str(root)]) == 0
    shown = capsys.readouterr().out
    assert "The longest of 1 rollouts" in shown and (root / "lab/analysis/lengths.svg").exists()
    assert json.loads((root / "lab/analysis/lengths.json").read_text())["options"] == {"rollouts": 1}
