"""The papers' pages: every file that they name is there, and every recipe of the paper is named."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "papers").glob("[!R]*.md"))
# `table-1/hitab-*.yaml`, `figure-2/llama-{a,b}`, with or without the folder before it and the ending.
NAMED = re.compile(r"(?:configs/papers/\w+/)?((?:table|figure)-\w+/[\w.+*{},-]+)")


def expanded(pattern: str) -> list[str]:
    """`a-{b,c}` as `a-b` and `a-c`."""
    parts = [part.split(",") if number % 2 else [part] for number, part in enumerate(re.split(r"[{}]", pattern))]
    return ["".join(choice) for choice in product(*parts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_names_every_recipe_and_none_that_is_missing(page: Path) -> None:
    folder = ROOT / "configs" / "papers" / page.stem
    spans = re.findall(r"`([^`\n]+)`|^ {4}(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    patterns = {one for code, block in spans for found in NAMED.findall(code or block) for one in expanded(found)}
    matches = {one: set(folder.glob(f"{one.removesuffix('.yaml')}.yaml")) for one in patterns}
    assert [one for one, files in matches.items() if not files] == []
    missing = set(folder.rglob("[!_]*.yaml")) - set().union(*matches.values())
    assert sorted(file.relative_to(folder).as_posix() for file in missing) == []
