"""Checkpoints are whole or absent, and any damage is found and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr_cli.runs.checkpoints import (
    MANIFEST,
    Checkpoint,
    Damaged,
    find_damage,
    keep_newest,
    scan_checkpoints,
    valid_checkpoints,
    write_checkpoint,
)


def content(folder: Path) -> None:
    (folder / "weights").write_bytes(bytes(range(256)))
    (folder / "inner").mkdir()
    (folder / "inner" / "state.json").write_text('{"step": 7}')


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [delete, truncate, alter])
@pytest.mark.parametrize("name", ["weights", "inner/state.json", MANIFEST])
def test_every_damage_to_every_file_is_found(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    write_checkpoint(tmp_path, 3, content)
    newest = write_checkpoint(tmp_path, 7, content)
    assert find_damage(newest.path) is None
    damage(newest.path / name)
    found = scan_checkpoints(tmp_path, hashed=1)
    assert isinstance(found[0], Damaged) and found[0].step == 7
    assert name in found[0].reason
    assert found[1] == Checkpoint(3, tmp_path / "step-3")


def test_hashes_are_of_what_is_loaded_sizes_of_all(tmp_path: Path) -> None:
    """Files are altered with their sizes kept: what is passed as whole was not hashed."""
    for step in (1, 2, 3, 4, 5):
        alter(write_checkpoint(tmp_path, step, content).path / "weights")
    truncate(tmp_path / "step-2" / "weights")
    write_checkpoint(tmp_path, 4, content)

    def whole(hashed: int) -> list[int]:
        return [entry.step for entry in scan_checkpoints(tmp_path, hashed=hashed) if isinstance(entry, Checkpoint)]

    assert (whole(0), whole(1), whole(2)) == ([5, 4, 3, 1], [4, 3, 1], [4])
    assert [checkpoint.step for checkpoint in valid_checkpoints(tmp_path)] == [5, 4, 3, 1]


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        content(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(tmp_path, 3, fails)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_writer_are_not_checkpoints_and_go_away(tmp_path: Path) -> None:
    content_aside = tmp_path / ".step-5.new-999999999"
    content_aside.mkdir()
    content(content_aside)
    assert scan_checkpoints(tmp_path) == []
    write_checkpoint(tmp_path, 6, content)
    assert [path.name for path in tmp_path.iterdir()] == ["step-6"]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10, 20):
        write_checkpoint(tmp_path, step, content)
    keep_newest(tmp_path, 2, step=10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-2", "step-20"]
    keep_newest(tmp_path, 1, step=20)
    assert [path.name for path in tmp_path.iterdir()] == ["step-20"]


def test_a_damaged_checkpoint_is_replaced_when_training_comes_by_again(tmp_path: Path) -> None:
    alter(write_checkpoint(tmp_path, 3, content).path / "weights")
    assert write_checkpoint(tmp_path, 3, content) == Checkpoint(3, tmp_path / "step-3")
    assert len(valid_checkpoints(tmp_path)) == 1
