"""One writer, and readers who ask whether there is one."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from rlvr_cli.core import files
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import LOCK, append_jsonl, is_held, lock_folder, truncate_jsonl


def test_a_reader_that_asks_is_not_taken_for_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rlvr runs watch` asks again and again while runs are started and resumed."""
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        # The reader is through while the writer waits.
        monkeypatch.setattr(files.time, "sleep", lambda seconds: asking.close())
        with lock_folder(tmp_path, ""):
            assert is_held(tmp_path)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with lock_folder(tmp_path, ""):
        for _ in range(2):
            with pytest.raises(UserError, match=r"in use by another process \(pid \d+@\S+\)\. Wait"):
                lock_folder(tmp_path, "Wait.").__enter__()
    assert not is_held(tmp_path)


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("somebody's\n")
    (tmp_path / LOCK).symlink_to(other)
    with pytest.raises(UserError, match="is a link to"):
        lock_folder(tmp_path, "").__enter__()
    assert other.read_text() == "somebody's\n" and not is_held(tmp_path)


def test_lines_are_appended_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}\n")
    (tmp_path / "rows.jsonl").symlink_to("other")
    for write in (lambda path: append_jsonl(path, [{}]), lambda path: truncate_jsonl(path, 0)):
        with pytest.raises(UserError, match="is a link to other"):
            write(tmp_path / "rows.jsonl")
    assert (tmp_path / "other").read_text() == "{}\n"
