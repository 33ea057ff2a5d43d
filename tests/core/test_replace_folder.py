"""A folder is replaced whole or not at all."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.core import files
from rlvr_cli.core.files import replace_folder


def write(target: Path, text: str) -> None:
    with replace_folder(target) as new:
        (new / "file").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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


def killed_before(step: int, target: Path, text: str) -> None:
    """Write in a process that is killed before a step: 0, 1 the renames, 2 the deletion of the old folder."""
    pid = os.fork()
    if pid == 0:
        steps = itertools.count()

        def counted(do: Any) -> Any:
            return lambda *given, **options: os._exit(9) if next(steps) == step else do(*given, **options)

        Path.rename, shutil.rmtree = counted(Path.rename), counted(shutil.rmtree)  # type: ignore[method-assign]
        write(target, text)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


@pytest.mark.parametrize("step", [0, 1, 2])
def test_after_a_kill_at_any_step_the_next_writer_finds_a_whole_folder(tmp_path: Path, step: int) -> None:
    """The next one fails, so what it found is there; it may not replace a folder, so it does not."""
    write(tmp_path / "a", "first")
    killed_before(step, tmp_path / "a", "second")
    assert (tmp_path / "a").exists() == (step != 1) and len(names(tmp_path)) == 2
    with pytest.raises(OSError, match="not empty"), replace_folder(tmp_path / "a", overwrite=False) as new:
        (new / "file").write_text("third")
    assert (tmp_path / "a" / "file").read_text() == ("second" if step == 2 else "first")
    write(tmp_path / "a", "fourth")
    assert (tmp_path / "a" / "file").read_text() == "fourth" and names(tmp_path) == ["a"]


def test_of_two_writers_without_overwrite_the_second_loses(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not empty"), replace_folder(tmp_path / "a", overwrite=False):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "file").write_text("of the other")
    assert (tmp_path / "a" / "file").read_text() == "of the other" and names(tmp_path) == ["a"]


def test_leftovers_of_dead_processes_go_and_a_living_writer_keeps_its_folder(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    host = socket.gethostname()
    (tmp_path / f".a.new-{int(dead.stdout)}@{host}").mkdir()
    (tmp_path / f".a.old-{int(dead.stdout)}@{host}").mkdir()
    living, others = tmp_path / f".a.new-{os.getppid()}@{host}", tmp_path / ".a.new-notes"
    living.mkdir()
    others.mkdir()
    write(tmp_path / "a", "first")
    assert names(tmp_path) == sorted([living.name, others.name, "a"])


def test_a_folder_of_another_host_is_in_use_until_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of its process means nothing here."""
    aside = tmp_path / ".a.old-999999999@elsewhere"
    aside.mkdir()
    write(tmp_path / "b", "of another name")
    write(tmp_path / "a", "first")
    assert names(tmp_path) == sorted([aside.name, "a", "b"])
    monkeypatch.setattr(files, "_OTHER_HOST_SECONDS", 0)
    write(tmp_path / "a", "second")
    assert names(tmp_path) == ["a", "b"]
