"""A file of rows is read once in a command, and again where it changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.tasks import data
from rlvr_cli.tasks.math import MathTask


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    read_rows = data.read_rows

    def counted(path: Path) -> Any:
        reads.append(path)
        return read_rows(path)

    monkeypatch.setattr(data, "read_rows", counted)
    path = tmp_path / "rows.jsonl"
    rows = [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"question": "None?", "answer": ""}]))
    task = MathTask(data=str(path))
    for _ in range(3):
        with pytest.warns(UserWarning, match="1 rows with an empty answer were left out"):
            assert len([one for split in ("train", "dev", "test") for one in task.load(split)]) == 40  # type: ignore[arg-type]
    assert reads == [path]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:30]))
    assert len(task.load("all")) == 30 and reads == [path, path]
    assert len(MathTask(data=str(path), rule="strict").load("all")) == 30
