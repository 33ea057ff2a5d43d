"""`rlvr tasks`: list, show, generate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.config.load import choose_task

GENERATED = {"kk": "kk-gen", "countdown": "countdown-gen", "math": "math-story-gen"}


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(["tasks", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", GENERATED)
def test_what_is_generated_can_be_loaded(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "problems.train.jsonl"
    assert f"20 train problems of {GENERATED[name]}" in shown(
        capsys, "generate", name, "--problems", "20", "--output", str(path)
    )
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    config = choose_task(name, generated=True)
    generated = config.for_model("logic_rl").problems("train", 20, 0)
    for row, problem in zip(rows, generated, strict=True):
        read = config.problem_from(row, "here")
        # What only a generator knows, as the cells that lead to an answer, is not read back.
        assert read.question == problem.question and read.data.items() <= problem.data.items()
    loaded = choose_task(name, [f"task.data={path}"])
    found = loaded.for_model("logic_rl").problems("train", 20, 0)
    assert found and {problem.question for problem in found} <= {row["question"] for row in rows}


def test_a_file_is_not_replaced_by_chance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("mine\n")
    line = ["tasks", "generate", "kk", "--problems", "2", "--output", str(path)]
    assert run(line) == 2 and "--overwrite" in capsys.readouterr().err and path.read_text() == "mine\n"
    assert run([*line, "--overwrite"]) == 0 and len(path.read_text().splitlines()) == 2
    assert run(["tasks", "generate", "kk", "--split", "all", "--output", str(tmp_path / "b.txt")]) == 2
    shown = capsys.readouterr().err
    assert "train, dev, test" in shown and ".jsonl" in shown


def test_bad_data_leave_no_folder_and_a_file_that_is_read_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, new = tmp_path / "none.jsonl", tmp_path / "new"
    assert run(["tasks", "generate", "kk", f"task.data={missing}", "--output", str(new / "a.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err and not new.exists()
    path = tmp_path / "mine.jsonl"
    assert run(["tasks", "generate", "kk", "--problems", "9", "--output", str(path)]) == 0
    before = path.read_bytes()
    line = ["tasks", "generate", "kk", f"task.data={path}", "--output", str(path), "--overwrite"]
    assert run(line) == 2 and "is the input file" in capsys.readouterr().err
    assert path.read_bytes() == before
