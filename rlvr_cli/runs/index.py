"""An index over run directories: what their manifests said, in one SQLite file that can be deleted at any time.

The file is never changed, only replaced as a whole: a reader has one complete index or another, and writers cannot
damage one another's, without a lock. An entry counts only while the manifest has the signature it was read with.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rlvr_cli.core.errors import RunError
from rlvr_cli.runs.atomic import fsync
from rlvr_cli.runs.summary import Entry, Runs

INDEX = ".rlvr-index.sqlite"
VERSION = 1
_TABLE = "CREATE TABLE runs (name TEXT PRIMARY KEY, signature TEXT, record TEXT, checksum INTEGER)"
# A file that a killed writer left; a living one needs seconds.
_LEFT_OVER_SECONDS = 3600


class DamagedIndex(Exception):
    """An index that cannot be used, and why."""


@dataclass(frozen=True)
class Update:
    """What an update of the index found.

    Attributes:
        runs: in the folder.
        indexed: of them, in the index now.
        read: manifests that were read; the others had not changed.
        removed: that were in the index before and are no longer in the folder.
        damaged: runs whose manifest cannot be read; never in the index.
        moving: runs that are running or waiting, or whose manifest changed in the last seconds; not in the index.
        note: why the index that was there before was not used, or None.
    """

    path: Path
    runs: int
    indexed: int
    read: int
    removed: int
    damaged: int
    moving: int
    note: str | None


def index_path(root: Path) -> Path:
    """Where the index over the runs in ``root`` is."""
    return root / INDEX


def load_index(root: Path) -> dict[str, Entry]:
    """What the index says, by name; nothing where there is none. Raises DamagedIndex."""
    path = index_path(root)
    if not path.exists():
        return {}
    try:
        # Immutable: no lock is taken and no journal looked for; a replaced index is another file.
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)) as store:
            version = store.execute("PRAGMA user_version").fetchone()[0]
            if version != VERSION:
                raise DamagedIndex(f"its format is {version}, not {VERSION}")
            rows = store.execute("SELECT name, signature, record, checksum FROM runs").fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # SQLite's messages may hold damaged bytes, which Python cannot read.
        if not path.exists():
            return {}
        raise DamagedIndex(str(error)) from error
    if any(checksum != _checksum(name, signature, record) for name, signature, record, checksum in rows):
        raise DamagedIndex("an entry was altered")
    # One text for all: a call for each record would take longer than what it decodes.
    records = json.loads(f"[{','.join(record for _, _, record, _ in rows)}]")
    return {name: Entry(signature, record) for (name, signature, _, _), record in zip(rows, records, strict=True)}


def update_index(root: Path, *, rebuild: bool = False) -> Update:
    """Bring the index over ``root`` up to date, or make it from nothing; the file is replaced in one step.

    Raises OSError where ``root`` cannot be read or written, RunError where SQLite cannot write.
    """
    path = index_path(root)
    known, note = ({}, None) if rebuild else _known(root)
    temporary = path.with_name(f"{INDEX}.{secrets.token_hex(6)}.tmp")
    temporary.touch(exist_ok=False)
    try:
        # By the clock of the file system, which need not be this machine's.
        clock = temporary.stat().st_mtime_ns
        found = Runs(root, known)
        summaries = found.read(clock)
        entries = {name: entry for name, entry in found.known.items() if _is_text(name)}
        if entries != known or note is not None or rebuild or not path.exists():
            _fill(temporary, entries)
            fsync(temporary)
            temporary.replace(path)
            fsync(root)
    except sqlite3.Error as error:
        raise RunError(f"{path}: cannot be written ({error}).") from error
    finally:
        temporary.unlink(missing_ok=True)
    _remove_left_over(root, clock)
    names = {summary["name"] for summary in summaries}
    damaged = sum(summary["damage"] is not None for summary in summaries)
    return Update(
        path=path,
        runs=len(summaries),
        indexed=len(entries),
        read=found.reads,
        removed=len(known.keys() - names),
        damaged=damaged,
        moving=len(summaries) - damaged - len(found.known),
        note=note,
    )


@dataclass(frozen=True)
class Listing:
    """The summaries of the runs in a folder, by name, and notes for the reader."""

    runs: list[dict[str, Any]]
    notes: tuple[str, ...] = ()


def read_runs(root: Path, *, use_index: bool = True) -> Listing:
    """Every run in ``root``; with an index, only the manifests that changed after it was made are read.

    The runs are the same with and without. A damaged index is made anew, with a note. Raises OSError where ``root``
    cannot be read.
    """
    notes: tuple[str, ...] = ()
    known: Mapping[str, Entry] = {}
    if use_index:
        known, note = _known(root)
        if note is not None:
            notes = (_remade(root, note),)
    return Listing(Runs(root, known).read(time.time_ns()), notes)


def _remade(root: Path, note: str) -> str:
    try:
        update_index(root, rebuild=True)
    except (OSError, RunError) as error:
        return f"{note}. It could not be made anew ({error}); every manifest was read."
    return f"{note}. It was made anew."


def _known(root: Path) -> tuple[dict[str, Entry], str | None]:
    try:
        return load_index(root), None
    except DamagedIndex as error:
        return {}, f"{index_path(root)}: the index cannot be used ({error})"


def _fill(path: Path, entries: Mapping[str, Entry]) -> None:
    with closing(sqlite3.connect(path)) as store:
        # Nobody else knows of the file yet, and a crash leaves nothing that is ever read.
        store.execute("PRAGMA journal_mode = OFF")
        store.execute("PRAGMA synchronous = OFF")
        store.execute(_TABLE)
        store.executemany("INSERT INTO runs VALUES (?, ?, ?, ?)", map(_row, entries, entries.values()))
        store.execute(f"PRAGMA user_version = {VERSION}")
        store.commit()


def _row(name: str, entry: Entry) -> tuple[Any, ...]:
    record = json.dumps(entry.record)
    return name, entry.signature, record, _checksum(name, entry.signature, record)


def _checksum(name: Any, signature: Any, record: Any) -> int:
    return zlib.crc32(f"{name}\n{signature}\n{record}".encode())


def _is_text(name: str) -> bool:
    """Whether SQLite can hold it: a folder's name may have bytes that are no text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _remove_left_over(root: Path, clock: int) -> None:
    for path in root.glob(f"{INDEX}.*.tmp"):
        try:
            if path.stat().st_mtime_ns < clock - _LEFT_OVER_SECONDS * 1_000_000_000:
                path.unlink()
        except FileNotFoundError:
            continue  # its writer lives and has just finished
