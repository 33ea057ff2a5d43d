"""Text fitted to a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len

from rlvr_cli.core.terminal import Marked, table_lines, use_colour, wrap_text

COMMAND = "rlvr train --resume runs/a-run-whose-name-is-longer-than-the-terminal-is-wide train.rollouts=120"


def test_lines_are_broken_between_words_and_a_command_can_be_pasted() -> None:
    text = f"saved at step 25, which is in the middle of rollout 12; continue with: {COMMAND}"
    lines = wrap_text(text, 40).split("\n")
    assert lines[-1] == COMMAND
    assert all(len(line) <= 40 for line in lines[:-1]) and " ".join(lines) == text
    assert wrap_text("    indented words that go on", 16) == "    indented\n    words that\n    go on"
    assert wrap_text("see `rlvr tasks benchmarks` for more", 24) == "see\n`rlvr tasks benchmarks`\nfor more"
    assert wrap_text("\u4e2d\u6587 \u4e2d\u6587", 5) == "\u4e2d\u6587\n\u4e2d\u6587"


@pytest.mark.parametrize("columns", [40, 80])
def test_a_table_loses_no_word_and_breaks_none(columns: int) -> None:
    header = ("run", "status", "accuracy [95%]", "what it is", "model", "created")
    rows = [
        ("grpo-lr2e-4-s0", "finished", "0.731 [0.694, 0.765]", "a sentence of many words " * 3, "lab", "2026-01-01"),
        ("a", "failed", "-0.1 [-0.25, 0.05]", "", "Qwen2.5-Math-1.5B", "2026-01-02"),
    ]
    lines = table_lines(header, rows, columns)
    assert all(cell_len(line) <= columns for line in lines)
    shown = " ".join(lines).split()
    for cell in (cell for row in (header, *rows) for cell in row):
        assert set(cell.split()) <= set(shown)
    if columns >= 60:
        assert "0.731 [0.694, 0.765]" in "\n".join(lines)
    assert len(table_lines(header, rows, None)) == 3


def test_colours_are_not_the_only_carrier(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a", Marked("two words", "bad"))]
    assert table_lines(("run", "status"), rows, None) == ["run  status", "a    two words"]
    plain, painted = (table_lines(("run", "status"), rows, 9, colours) for colours in (False, True))
    assert painted != plain and [re.sub("\x1b.*?m", "", line) for line in painted] == plain
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert not use_colour(io.StringIO()) and not use_colour(None)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert use_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_colour(io.StringIO())
