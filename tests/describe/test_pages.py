"""The pages under docs/methods say what the code says, and name nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.methods_cost import COMPOSITIONS, PAGE
from rlvr_cli.config.keys import KEYS
from rlvr_cli.describe.pages import (
    COMMAND,
    INDEX,
    MODIFIER_PAGE,
    methods_by_page,
    stale_pages,
)
from rlvr_cli.methods.names import BASES

ROOT = Path(__file__).parents[2]
COST_PAGE = "cost.md"
PAGES = ROOT / "docs" / "methods"

# It is about a file of the reader's, and names that file's keys.
OWN_PAGE = "own.md"
# Written by hand: what modifiers with one purpose have in common.
OF_MODIFIERS = {"controls.md", "length.md"}


def text(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def test_no_generated_part_is_stale() -> None:
    assert stale_pages(PAGES) == [], f"run: {COMMAND}"


def test_every_method_is_on_one_page_and_there_is_no_other_page() -> None:
    pages = {path.name for path in PAGES.glob("*.md")}
    assert pages == {INDEX, MODIFIER_PAGE, COST_PAGE, OWN_PAGE, *OF_MODIFIERS, *methods_by_page()}
    assert sorted(name for names in methods_by_page().values() for name in names) == sorted(BASES)


def test_the_costs_are_those_of_every_method_that_samples() -> None:
    """As benchmarks/methods_cost.py prints them; tests/training/test_cost.py says what they must be."""
    page = text(COST_PAGE)
    assert page.startswith(f"{PAGE}\n\n## 1 update a rollout\n")
    for part in page[len(PAGE) :].split("\n## ")[1:]:
        assert all(line.startswith("|") for line in part.splitlines()[1:] if line), "only the table"
        rows = re.findall(r"^\| ([^|]+) \| \d", part, flags=re.MULTILINE)
        names = [name for row in rows for name in row.split(", ")]
        assert sorted(names) == sorted([*(name for name in BASES if name != "sft"), *COMPOSITIONS])


def test_every_key_that_is_named_exists() -> None:
    for name in sorted({path.name for path in PAGES.glob("*.md")} - {OWN_PAGE}):
        known = {key.name for key in KEYS.keys}
        known |= {key.rsplit(".", end)[0] for key in known for end in (1, 2) if key.count(".") >= end}
        for quoted in re.findall(r"`([^`\n]+)`", text(name)):
            for word in quoted.split():
                if re.match(r"(method|rollout|update|run|train)\.[a-z]", word):
                    assert word.partition("=")[0] in known, word
