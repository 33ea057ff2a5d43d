"""The README's counts of claims are those of the page of claims."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def words(name: str) -> str:
    return " ".join((REPOSITORY / name).read_text(encoding="utf-8").split())


def test_the_ledgers_first_sentence_is_that_of_the_ledger_and_stands_after_installation() -> None:
    first = re.search(r"\*\*Of \d+ claims.*?\*\*", words("experiments/claims/ledger.md"))
    assert first is not None
    readme = words("README.md")
    assert first[0] in readme
    assert readme.index("make demo") < readme.index(first[0])
