"""The papers' pages: every row that they name is there, and every row of the paper is named."""

from __future__ import annotations

import re
from fnmatch import filter as matching
from itertools import product
from pathlib import Path

import pytest

from tests.recipes import recipes

PAGES = sorted((Path(__file__).parents[2] / "docs" / "papers").glob("[!R]*.md"))
# `table-1.yaml:hitab-*`, `papers/gtpo/figure-2:llama-{a,b}`, with or without the folder and the ending.
NAMED = re.compile(r"(?:papers/\w+/)?((?:table|figure)-\d+)(?:\.yaml)?:([\w.+*{},-]+)")


def expanded(pattern: str) -> list[str]:
    """`a-{b,c}` as `a-b` and `a-c`."""
    parts = [part.split(",") if number % 2 else [part] for number, part in enumerate(re.split(r"[{}]", pattern))]
    return ["".join(choice) for choice in product(*parts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_names_every_recipe_and_none_that_is_missing(page: Path) -> None:
    spans = re.findall(r"`([^`\n]+)`|^ {4}(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    patterns = {
        f"{page.stem}/{table}/{one}"
        for code, block in spans
        for table, row in NAMED.findall(code or block)
        for one in expanded(row)
    }
    rows = list(recipes(page.stem))
    matches = {one: set(matching(rows, one)) for one in patterns}
    assert [one for one, found in matches.items() if not found] == []
    assert sorted(set(rows) - set().union(*matches.values())) == []
