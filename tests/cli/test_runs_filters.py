"""`rlvr runs list` with filters, and its answers to filters that make no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from tests.runs.folders import make_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_run(tmp_path, "a", created="2025-01-10T12:00:00+00:00", last_metrics={"reward": 2})
    other = {"method": "grpo+lopti", "task": "math", "model": "Qwen/Qwen3-0.6B", "status": "failed"}
    make_run(tmp_path, "b", **other, created="2025-01-11T00:00:00+00:00", last_metrics={"reward": 0.5})
    make_run(tmp_path, "s/c", method="reinforce-pp", status="running", created="2025-01-12T23:30:00+00:00")
    make_run(tmp_path, "torn").manifest_path.write_text("{")
    return tmp_path


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], ["a", "b", "s/c", "torn"]),
        (["method=grpo"], ["a"]),
        (["method=*lopti*"], ["b"]),
        (["model=Qwen3-0.6B"], ["b"]),
        (["status=damaged"], ["torn"]),
        (["task=kk", "status=killed"], ["s/c"]),
    ],
    ids=" ".join,
)
def test_filters(root: Path, capsys: pytest.CaptureFixture[str], filters: list[str], expected: list[str]) -> None:
    assert run(["runs", "list", "--runs", str(root), "--format=json", *filters]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == expected


def test_filters_that_nothing_fits(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "list", "--runs", str(root), "task=math", "status=killed"]) == 0
    assert capsys.readouterr().out.split() == f"None of the 4 runs in {root} matches task=math status=killed.".split()
