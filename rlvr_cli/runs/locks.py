"""One writer for a folder or a file: a lock that goes with the process, so a crash leaves none behind."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rlvr_cli.core.errors import UserError

LOCK = ".lock"
_HELD_BY_ANOTHER = (errno.EWOULDBLOCK, errno.EACCES)
# Whoever asks whether a folder is held has its lock for an instant, which must not look like a writer. Seconds.
_PAUSES = (0.001, 0.004, 0.015, 0.05)


@contextmanager
def sole_writer(folder: Path, advice: str, file: str | None = None) -> Iterator[None]:
    """Hold ``folder``, or the ``file`` of it alone, while the context lasts.

    Raises UserError, ending in ``advice``, when another process holds it; OSError when the folder cannot be written.
    """
    held = folder if file is None else folder / file
    lock = LOCK if file is None else f".{file}{LOCK}"
    with (folder / lock).open("a+", encoding="utf-8") as stream:
        try:
            _take(stream)
        except OSError as error:
            if error.errno not in _HELD_BY_ANOTHER:
                raise
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            raise UserError(f"{held}: in use by another process (pid {holder}). {advice}") from error
        stream.seek(0)
        stream.truncate()
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield


def _take(stream: TextIO) -> None:
    """Lock ``stream`` for this process alone; raises OSError when another has it."""
    for pause in _PAUSES:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _HELD_BY_ANOTHER:
                raise
            time.sleep(pause)
        else:
            return
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(folder: Path) -> bool:
    """Whether a living process is writing in ``folder``."""
    try:
        stream = (folder / LOCK).open(encoding="utf-8")
    except (FileNotFoundError, PermissionError):
        return False
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _HELD_BY_ANOTHER:
                raise
            return True
    return False
