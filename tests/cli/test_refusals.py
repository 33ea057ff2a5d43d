"""What the commands refuse, and how; a configuration's refusals are in tests/config."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.refusals import check


def test_every_refusal_says_what_to_do_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)
    check(Path(__file__).with_name("refusals.txt"), tmp_path)
