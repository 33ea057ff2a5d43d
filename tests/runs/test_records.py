"""Records survive a cut in the middle of a line; other damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import append_jsonl, read_jsonl, truncate_jsonl, write_json

ROWS = [{"step": step, "text": "a\u2028b \u00e9"} for step in range(5)]


@pytest.mark.parametrize("cut", (1, 14))
def test_a_torn_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rows.jsonl"
    append_jsonl(path, ROWS)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_jsonl(path) == ROWS[:4]


def test_a_damaged_line_elsewhere_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 0}\n{"step"\n{"step": 2}\n')
    with pytest.raises(RunError, match=r"rows\.jsonl:2"):
        read_jsonl(path)


@pytest.mark.parametrize("line", ["[]"])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"step": 0}}\n{line}\n')
    with pytest.raises(RunError, match=r"rows\.jsonl:2: not a JSON object"):
        read_jsonl(path)


def test_truncating_keeps_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_jsonl(path, ROWS)
    truncate_jsonl(path, 2)
    assert read_jsonl(path) == ROWS[:2]
    truncate_jsonl(tmp_path / "absent.jsonl", 0)
    with pytest.raises(RunError, match="has 2 lines; the checkpoint expects 3"):
        truncate_jsonl(path, 3)


def test_numbers_that_json_cannot_hold_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with pytest.raises(ValueError, match="JSON compliant"):
        append_jsonl(path, [{"loss": 1.0}, {"loss": float("nan")}])
    assert not path.exists()
    (tmp_path / "value.json").write_text("{}")
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "value.json", {"loss": float("inf")})
    assert json.loads((tmp_path / "value.json").read_text()) == {}
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]
