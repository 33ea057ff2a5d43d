"""docs/performance.md is made section by section: one is measured again, the others stay."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.page import SECTIONS, Section


def test_every_command_is_a_benchmark() -> None:
    modules = {command.split()[0] for section in SECTIONS for command in section.commands}
    assert [module for module in modules if find_spec(module) is None] == []


def test_a_section_is_measured_anew_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Section("one", "One", "Read so.", ("platform --terse",), (("A", "1"),))
    two = Section("two", "Two", "And so.", ("platform",))
    path = tmp_path / "performance.md"
    path.write_text("# Old\n\n## Two\n\nof another machine\n\n## Gone\n\nno command\n")
    monkeypatch.setattr(page, "SECTIONS", (one, two))
    monkeypatch.setattr(page, "PAGE", path)
    monkeypatch.setattr("sys.argv", ["page", "one"])
    page.main()
    written = path.read_text()
    assert written.startswith(page.HEAD) and "## Two\n\nof another machine\n" in written and "Gone" not in written
    assert "## One\n\nRead so.\n\n`A=1 python -m platform --terse`, on " in written
    assert written.index("## One") < written.index("## Two")


def test_a_command_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "performance.md"
    path.write_text("# Old\n")
    monkeypatch.setattr(page, "SECTIONS", (Section("one", "One", "", ("no_such_benchmark",)),))
    monkeypatch.setattr(page, "PAGE", path)
    monkeypatch.setattr("sys.argv", ["page"])
    with pytest.raises(SystemExit, match="no_such_benchmark failed"):
        page.main()
    assert path.read_text() == "# Old\n"
