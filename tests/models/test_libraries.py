"""Libraries are imported without garbage collections, before there is anything that could be collected."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from rlvr_cli.models.libraries import import_library


@pytest.mark.counts
def test_no_collection_while_a_library_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "many_objects.py").write_text("objects = [[number] for number in range(100_000)]\n")
    collections, frozen = [], gc.get_freeze_count()
    monkeypatch.setattr(gc, "callbacks", [lambda phase, info: collections.append(info)])
    import_library("many_objects")
    monkeypatch.undo()
    assert not collections
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen + 100_000


def test_what_was_made_after_the_first_import_can_be_collected() -> None:
    import_library("json")
    frozen = gc.get_freeze_count()
    import_library("json")
    # Some of what is frozen may have been freed.
    assert gc.get_freeze_count() <= frozen


def test_collections_go_on_after_an_import_that_failed() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_library("no_such_library")
    assert gc.isenabled()
