"""The index never says anything else than the directories do."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.runs import summary as summaries
from rlvr_cli.runs.directory import RunDir
from rlvr_cli.runs.index import DamagedIndex, index_path, load_index, read_runs, update_index
from tests.runs.folders import make_run


@pytest.fixture
def settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries count as settled one tick of the file system's clock later: as good on Linux' own file systems."""
    monkeypatch.setattr(summaries, "SETTLED_NS", 0)


def tick() -> None:
    time.sleep(0.012)


def indexed(root: Path) -> dict[str, Any]:
    tick()
    update = update_index(root)
    assert (update.moving, update.indexed) == (0, update.runs - update.damaged)
    return {name: entry.record for name, entry in load_index(root).items()}


def assert_agree(root: Path) -> list[dict[str, Any]]:
    """What `list` shows with and without the index; returned without."""
    with_index, without = read_runs(root), read_runs(root, use_index=False)
    assert with_index.runs == without.runs
    return without.runs


def one(root: Path, name: str) -> dict[str, Any]:
    return next(run for run in assert_agree(root) if run["name"] == name)


def test_only_what_changed_is_read_again(tmp_path: Path, settles_at_once: None) -> None:
    runs = [make_run(tmp_path, name) for name in ("a", "b", "sweep/c")]
    assert indexed(tmp_path).keys() == {"a", "b", "sweep/c"}
    before = index_path(tmp_path).stat().st_ino
    update = update_index(tmp_path)
    assert (update.read, index_path(tmp_path).stat().st_ino) == (0, before)
    runs[0].update_manifest(step=61)
    shutil.rmtree(runs[1].path)
    tick()
    update = update_index(tmp_path)
    assert (update.runs, update.read, update.removed) == (2, 1, 1)
    assert load_index(tmp_path)["a"].record["step"] == 61
    assert update_index(tmp_path, rebuild=True).read == 2


def test_what_was_written_just_now_is_not_trusted(tmp_path: Path) -> None:
    """Time stamps are coarse: two contents of one size may have the same."""
    made = make_run(tmp_path, "a", step=10)
    update = update_index(tmp_path)
    assert (update.indexed, update.moving) == (0, 1)
    for step in range(11, 60):
        made.manifest_path.write_text(made.manifest_path.read_text().replace(f'"step": {step - 1}', f'"step": {step}'))
        assert one(tmp_path, "a")["step"] == step


def test_a_status_is_never_older_than_the_directory(tmp_path: Path, settles_at_once: None) -> None:
    made = make_run(tmp_path, "a")
    indexed(tmp_path)
    with made.lock():
        made.update_manifest(status="running")
        assert one(tmp_path, "a")["status"] == "running"
        tick()
        assert (update_index(tmp_path).moving, load_index(tmp_path)) == (1, {})
        assert one(tmp_path, "a")["status"] == "running"
    assert one(tmp_path, "a")["status"] == "killed"
    with made.lock():
        assert one(tmp_path, "a")["status"] == "running"
        made.update_manifest(status="finished")
    assert one(tmp_path, "a")["status"] == "finished"


def test_times_that_were_set_do_not_deceive(tmp_path: Path, settles_at_once: None) -> None:
    """A restored backup, an `rsync --times`, a clock that is wrong: same size, same time of modification."""
    made = make_run(tmp_path, "a", step=10)
    for when in (0, 2_000_000_000, 4_000_000_000):
        os.utime(made.manifest_path, (when, when))
        indexed(tmp_path)
        text = made.manifest_path.read_text()
        step = made.read_manifest()["step"]
        made.manifest_path.write_text(text.replace(f'"step": {step}', f'"step": {step + 1}'))
        os.utime(made.manifest_path, (when, when))
        assert one(tmp_path, "a")["step"] == step + 1


def test_a_run_in_the_place_of_another(tmp_path: Path, settles_at_once: None) -> None:
    make_run(tmp_path, "a", method="grpo")
    make_run(tmp_path, "b", method="dgpo")
    indexed(tmp_path)
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "b").rename(tmp_path / "a")
    assert [(run["name"], run["method"]) for run in assert_agree(tmp_path)] == [("a", "dgpo")]
    make_run(tmp_path, "sweep/a", method="lopti")
    (tmp_path / "a").rename(tmp_path / "sweep" / "b")
    assert [(run["name"], run["method"]) for run in assert_agree(tmp_path)] == [
        ("sweep/a", "lopti"),
        ("sweep/b", "dgpo"),
    ]


def test_damaged_runs_are_read_anew_each_time(tmp_path: Path, settles_at_once: None) -> None:
    made = make_run(tmp_path, "a")
    whole = made.manifest_path.read_text()
    make_run(tmp_path, "gone").manifest_path.unlink()
    made.manifest_path.write_text(whole[:100])
    assert indexed(tmp_path) == {}
    assert {run["name"]: run["status"] for run in assert_agree(tmp_path)} == {"a": "damaged", "gone": "damaged"}
    made.manifest_path.write_text(whole)
    assert one(tmp_path, "a")["status"] == "finished"


def test_any_history(tmp_path: Path, settles_at_once: None) -> None:
    """Whatever is done to the directories and to the index, in any order."""
    rng = random.Random(0)
    names = ["a", "b", "c", "sweep/a", "sweep/b", "other/a"]

    def write(path: Path) -> None:
        """In place or by replacement; mostly of one size; with times that say little."""
        content = {"status": rng.choice(["failed  ", "finished"]).strip(), "step": rng.randrange(10, 100)}
        text = json.dumps(content)[: rng.choice([12, 1000, 1000, 1000])]
        if rng.random() < 0.5:
            path.write_text(text)
        else:
            path.with_name("new").write_text(text)
            path.with_name("new").replace(path)
        if rng.random() < 0.5:
            when = rng.choice([0, 1_000_000_000, 4_000_000_000])
            os.utime(path, (when, when))

    def step() -> str:
        path, other = tmp_path / rng.choice(names), tmp_path / rng.choice(names)
        manifest, index = path / "manifest.json", index_path(tmp_path)
        deed = rng.choice(["write", "write", "delete", "rename", "copy", "lose", "index", "index", "forget", "hurt"])
        if deed == "write":
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            (path / "config.yaml").touch()
            write(manifest)
        elif deed == "delete":
            shutil.rmtree(path, ignore_errors=True)
        elif deed in ("rename", "copy") and path.exists() and path != other:
            shutil.rmtree(other, ignore_errors=True)
            other.parent.mkdir(exist_ok=True)
            (path.rename if deed == "rename" else lambda to: shutil.copytree(path, to))(other)
        elif deed == "lose":
            manifest.unlink(missing_ok=True)
        elif deed == "index":
            tick()
            update_index(tmp_path)
        elif deed == "forget":
            index.unlink(missing_ok=True)
        elif deed == "hurt" and index.exists():
            data = bytearray(index.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            index.write_bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
        return deed

    history, used = [], 0
    for _ in range(300):
        history.append(step())
        assert read_runs(tmp_path).runs == read_runs(tmp_path, use_index=False).runs, history[-10:]
        used += bool(load_index(tmp_path))
    assert used > 75


def test_a_damaged_index_is_made_anew_with_a_note(tmp_path: Path, settles_at_once: None) -> None:
    for name in ("a", "b"):
        make_run(tmp_path, name)
    indexed(tmp_path)
    path = index_path(tmp_path)
    whole = path.read_bytes()
    for damage in (b"", b"no database", whole[:1000], whole[:100] + bytes(len(whole) - 100), os.urandom(len(whole))):
        path.write_bytes(damage)
        with pytest.raises(DamagedIndex):
            load_index(tmp_path)
        tick()
        listing = read_runs(tmp_path)
        assert len(listing.runs) == 2
        assert len(listing.notes) == 1 and listing.notes[0].startswith(f"{path}: the index cannot be used (")
        assert listing.notes[0].endswith("It was made anew.")
        assert load_index(tmp_path).keys() == {"a", "b"} and read_runs(tmp_path).notes == ()


def test_every_flipped_byte_is_noticed_or_without_effect(tmp_path: Path, settles_at_once: None) -> None:
    for name in ("a", "b", "c"):
        make_run(tmp_path, name, last_metrics={"reward": 0.25})
    indexed(tmp_path)
    path = index_path(tmp_path)
    whole, right = path.read_bytes(), load_index(tmp_path)
    noticed = 0
    for position in range(0, len(whole), 11):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        try:
            found = load_index(tmp_path)
        except DamagedIndex:
            noticed += 1
        else:
            assert found.items() <= right.items()
    assert noticed


def test_an_index_of_another_version(tmp_path: Path, settles_at_once: None) -> None:
    make_run(tmp_path, "a")
    indexed(tmp_path)
    with closing(sqlite3.connect(index_path(tmp_path))) as store:
        store.execute("PRAGMA user_version = 99")
        store.commit()
    update = update_index(tmp_path)
    assert update.note is not None and "its format is 99" in update.note
    assert load_index(tmp_path).keys() == {"a"}


def test_an_index_that_cannot_be_replaced(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    index_path(tmp_path).mkdir()
    listing = read_runs(tmp_path)
    assert len(listing.runs) == 1
    assert "could not be made anew" in listing.notes[0]
    assert not list(tmp_path.glob("*.tmp")) and not list(tmp_path.glob(".*.tmp"))


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    old, new = (tmp_path / f".rlvr-index.sqlite.{which}.tmp" for which in ("old", "new"))
    old.touch()
    os.utime(old, (0, 0))
    new.touch()
    update_index(tmp_path)
    assert not old.exists() and new.exists()


UPDATES = """
import sys
from pathlib import Path
from rlvr_cli.runs import summary
from rlvr_cli.runs.index import update_index
summary.SETTLED_NS = 0
for _ in range(40):
    update_index(Path(sys.argv[1]))
"""


def test_processes_that_index_at_once(tmp_path: Path, settles_at_once: None) -> None:
    """Two write the index while a third reads it and runs come, change and go."""
    runs = [make_run(tmp_path, f"run-{number}") for number in range(20)]
    writers = [
        subprocess.Popen([sys.executable, "-c", UPDATES, str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    rng, steps = random.Random(0), 0
    while any(writer.poll() is None for writer in writers):
        steps += 1
        name = rng.choice(runs).name
        if rng.random() < 0.3:
            shutil.rmtree(tmp_path / name, ignore_errors=True)
        elif (tmp_path / name).exists():
            RunDir(tmp_path / name).update_manifest(step=steps)
        else:
            make_run(tmp_path, name)
        listing = read_runs(tmp_path)
        assert listing.runs == read_runs(tmp_path, use_index=False).runs and listing.notes == ()
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    assert [path.name for path in tmp_path.glob(".rlvr-index*")] == [index_path(tmp_path).name]
    assert len(indexed(tmp_path)) == len(assert_agree(tmp_path))


def test_names_that_are_no_text(tmp_path: Path, settles_at_once: None) -> None:
    make_run(tmp_path, "a")
    (tmp_path / "a").rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    tick()
    assert update_index(tmp_path).indexed == 0
    assert [run["name"] for run in assert_agree(tmp_path)] == ["\\udcff"]
