"""The file of a search's study, which stays whole and free when a process that writes in it is killed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import BinaryIO

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock


def journal(path: Path) -> JournalStorage:
    """Optuna's storage of JSON lines for processes that share a file system (optuna.storages.JournalStorage)."""
    return JournalStorage(JournalFileBackend(str(path), _Alone(path)))


class _Alone(BaseJournalFileLock):
    """Held by whoever appends; the system takes it back when its process ends.

    Optuna's own locks are files that a killed process leaves behind, and a line that a kill cut short makes every
    later one unreadable to it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: BinaryIO | None = None

    def acquire(self) -> bool:
        """Wait for the file, and take away what was begun of a line."""
        self._stream = self._path.open("r+b")
        fcntl.flock(self._stream, fcntl.LOCK_EX)
        _whole_lines(self._stream)
        return True

    def release(self) -> None:
        """Let the next one append."""
        if self._stream is not None:
            self._stream.close()


def _whole_lines(stream: BinaryIO) -> None:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - 1, 0))
    if stream.read() not in (b"", b"\n"):
        stream.seek(0)
        stream.truncate(stream.read().rfind(b"\n") + 1)
