"""The pages as GitHub and the site have them: every relative link and anchor resolves, the nav names every page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("data/**/*.md"), *ROOT.glob("experiments/**/*.md"), *DOCS.rglob("*.md")])
CODE = re.compile(r"^(```+).*?^\1|^(?: {4}|\t).*?$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^(```+).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ +(.+?) *$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def in_nav(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from in_nav(inner)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_and_anchor_resolves(page: Path) -> None:
    broken = []
    for place, anchor in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / place).resolve() if place else page
        # A folder without a README is no page of the site; outside docs/ it is one that lists the files.
        if target.is_dir() and DOCS in (target, *target.parents):
            target /= "README.md"
        wrong = not target.exists() or ROOT not in target.parents
        # Anchors below the generated parts are checked where the site is built.
        if wrong or (anchor and anchor not in anchors(target) and "<!-- site:" not in target.read_text("utf-8")):
            broken.append(f"{place}#{anchor}" if anchor else place)
    assert broken == []


def test_the_nav_names_every_page_once() -> None:
    nav = list(in_nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    pages = [path for path in DOCS.rglob("*") if path.suffix in (".md", ".ipynb")]
    assert sorted(nav) == sorted(path.relative_to(DOCS).as_posix() for path in pages)
