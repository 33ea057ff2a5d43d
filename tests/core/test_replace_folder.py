"""A folder is replaced whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_cli.core.files import replace_folder


def write(target: Path, text: str) -> None:
    with replace_folder(target) as new:
        (new / "file").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_and_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "a", "first")
    write(tmp_path / "a", "second")
    assert (tmp_path / "a" / "file").read_text() == "second" and names(tmp_path) == ["a"]


def test_an_interrupted_writer_leaves_the_old_folder(tmp_path: Path) -> None:
    write(tmp_path / "a", "first")
    with pytest.raises(KeyboardInterrupt), replace_folder(tmp_path / "a") as new:
        (new / "file").write_text("second")
        raise KeyboardInterrupt
    assert (tmp_path / "a" / "file").read_text() == "first" and names(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_between_the_two_renames_brings_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    write(tmp_path / "a", "first")
    rename = Path.rename

    def refused(self: Path, target: Path) -> Path:
        if ".new-" in self.name:
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(type(error)), replace_folder(tmp_path / "a"):
        pass
    assert (tmp_path / "a" / "file").read_text() == "first" and names(tmp_path) == ["a"]


def test_the_old_folder_of_a_writer_killed_between_the_renames_outlives_one_that_fails(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    old = tmp_path / f".a.old-{int(dead.stdout)}"
    write(tmp_path / "a", "first")
    (tmp_path / "a").rename(old)
    with pytest.raises(OSError, match="No space"), replace_folder(tmp_path / "a"):
        raise OSError(28, "No space left on device")
    assert (old / "file").read_text() == "first"
    write(tmp_path / "a", "second")
    assert names(tmp_path) == ["a"]


def test_of_two_writers_without_overwrite_the_second_loses(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not empty"), replace_folder(tmp_path / "a", overwrite=False):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "file").write_text("of the other")
    assert (tmp_path / "a" / "file").read_text() == "of the other" and names(tmp_path) == ["a"]


def test_leftovers_of_dead_processes_go_and_a_living_writer_keeps_its_folder(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (tmp_path / f".a.new-{int(dead.stdout)}").mkdir()
    (tmp_path / f".a.old-{int(dead.stdout)}").mkdir()
    living, others = tmp_path / f".a.new-{os.getppid()}", tmp_path / ".a.new-notes"
    living.mkdir()
    others.mkdir()
    write(tmp_path / "a", "first")
    assert names(tmp_path) == sorted([living.name, others.name, "a"])
