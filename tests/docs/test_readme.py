"""The README's summary of the ledger is the ledger's own."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_ledgers_summary_is_that_of_the_ledger() -> None:
    ledger = (REPOSITORY / "docs" / "ledger.md").read_text(encoding="utf-8")
    summary = ledger[ledger.index("**Of ") : ledger.index("![")].strip()
    assert summary in (REPOSITORY / "README.md").read_text(encoding="utf-8")
