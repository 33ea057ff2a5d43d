"""The pages under docs/methods say what the code says, and name nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.methods_cost import COMPOSITIONS, PAGE
from rlvr_cli.config.keys import KEYS
from rlvr_cli.describe.pages import (
    COMMAND,
    INDEX,
    MARKER,
    MODIFIER_PAGE,
    families,
    generated_parts,
    main,
    prose,
    stale_pages,
    write_pages,
)
from rlvr_cli.methods.names import BASES, MODIFIERS

ROOT = Path(__file__).parents[2]
COST_PAGE = "cost.md"
PAGES = ROOT / "docs" / "methods"
SECTIONS = ("Idea", "Equal to", "What to watch", "Limits")

# It is about a file of the reader's, and names that file's keys.
OWN_PAGE = "own.md"


def text(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def test_no_generated_part_is_stale() -> None:
    assert stale_pages(PAGES) == [], f"run: {COMMAND}"


def test_every_method_is_on_one_page_and_there_is_no_other_page() -> None:
    pages = {path.name for path in PAGES.glob("*.md")}
    assert pages == {INDEX, MODIFIER_PAGE, COST_PAGE, OWN_PAGE, *families()}
    assert sorted(name for names in families().values() for name in names) == sorted(BASES)


def test_a_family_has_a_section_for_each_method_with_what_it_sets() -> None:
    page = text("grpo.md")
    assert page.startswith("# grpo, dapo, dr-grpo\n")
    parts = re.split(r"^## ", page, flags=re.MULTILINE)
    dapo = next(part for part in parts if part.startswith("dapo\n"))
    assert "`method.policy_loss.eps_high` | `0.28`" in dapo and "method.policy_loss.eps_low" not in dapo


def test_the_costs_are_those_of_every_method_that_samples() -> None:
    """As benchmarks/methods_cost.py prints them; tests/training/test_cost.py says what they must be."""
    page = text(COST_PAGE)
    assert page.startswith(f"{PAGE}\n\n## 1 update a rollout\n")
    for part in page.split("\n## ")[1:]:
        assert all(line.startswith("|") for line in part.splitlines()[1:] if line), "only the table"
        rows = re.findall(r"^\| ([^ ]+) \| \d", part, flags=re.MULTILINE)
        assert sorted(rows) == sorted([*(name for name in BASES if name != "sft"), *COMPOSITIONS])


def test_every_page_has_its_sections_filled() -> None:
    for name in families():
        parts = re.split(r"^## (.+)$", prose(PAGES, name), flags=re.MULTILINE)
        assert tuple(parts[1::2]) == SECTIONS, name
        assert all(len(body.split()) >= 2 for body in parts[2::2]), name


def test_every_modifier_has_its_notes() -> None:
    notes = prose(PAGES, MODIFIER_PAGE)
    for name in MODIFIERS:
        assert f"**{name}**" in notes


def test_links_and_pictures_are_there() -> None:
    for name in sorted(path.name for path in PAGES.glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", text(name)):
            if not target.startswith("https://"):
                assert (PAGES / target).exists(), target


def test_every_key_that_is_named_exists() -> None:
    for name in sorted({path.name for path in PAGES.glob("*.md")} - {OWN_PAGE}):
        known = {key.name for key in KEYS.keys}
        known |= {key.rsplit(".", end)[0] for key in known for end in (1, 2) if key.count(".") >= end}
        for quoted in re.findall(r"`([^`\n]+)`", text(name)):
            for word in quoted.split():
                if re.match(r"(method|rollout|update|run|train)\.[a-z]", word):
                    assert word.partition("=")[0] in known, word


def test_bringing_a_page_up_to_date_keeps_its_prose(tmp_path: Path) -> None:
    assert set(write_pages(tmp_path)) == set(generated_parts())
    assert stale_pages(tmp_path) == []
    page = tmp_path / "dgpo.md"
    page.write_text(page.read_text().replace("# dgpo", "# an old title") + "Prose.\n")
    assert stale_pages(tmp_path) == ["dgpo.md"]
    assert write_pages(tmp_path) == ["dgpo.md"]
    assert page.read_text().startswith("# dgpo:")
    assert page.read_text().endswith(f"\n{MARKER}\nProse.\n")


def test_the_check_names_stale_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path), "--check"]) == 0
    (tmp_path / "grpo.md").unlink()
    assert main([str(tmp_path), "--check"]) == 1
    assert "grpo.md" in capsys.readouterr().err
