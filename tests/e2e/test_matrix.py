"""What reads runs, on twelve of several methods, seeds, adapters and states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr_cli import store
from tests.commands import run_here
from tests.matrix import RUNS


def test_every_run_is_listed_with_its_steps(matrix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "runs", "list", "--runs", str(matrix), "--format=json")
    listed = {row["name"]: row for row in json.loads(done.out)}
    assert done.code == 0 and listed.keys() == RUNS.keys()
    assert {row["status"] for row in listed.values()} == {"finished"}
    steps = store.steps(store.runs(root=matrix)).groupby("run")["step"].max()
    assert {Path(str(run)).name: step for run, step in steps.items()} == {
        name: 12 if name in ("lopti", "quantile", "lora", "sft") else 6 for name in RUNS
    }


def test_a_report_and_a_comparison_are_of_all_of_them(
    matrix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    done = run_here(capsys, "report", str(matrix), "--output", str(page))
    assert done.code == 0, done
    assert not [name for name in RUNS if name not in page.read_text(encoding="utf-8")]
    arms = store.arms(store.runs(root=matrix)).set_index("arm")["runs"].to_dict()
    assert sum(arms.values()) == len(RUNS) and sorted(arms.values())[-2:] == [2, 2]
