"""Paths as people write them; files replaced whole or not at all, JSON lines that may be cut off, one writer."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rlvr_cli.core.errors import RunError, UserError


def local_path(name: str) -> Path:
    """``name`` as a path, a leading ``~`` or ``~user`` replaced by that home folder.

    Raises UserError when there is no such home folder.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        home = name.replace("\\", "/").split("/", 1)[0]
        raise UserError(f"{name}: there is no home folder {home}. Write the path out.") from error


def fsync(path: Path) -> None:
    """Wait until the contents of a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``: a reader sees the old file or the new one, never a part."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """:func:`write_text` with bytes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as strict JSON (NaN and infinity raise ValueError)."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]], *, durable: bool = False) -> None:
    """Append ``rows`` in one write; ``durable`` waits until they are on the disk.

    Raises ValueError for NaN or infinity, which JSON cannot hold.
    """
    text = "".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        if durable:
            os.fsync(stream.fileno())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All complete lines of ``path``; an unfinished last line (the writer was killed) is left out.

    Raises RunError, naming file and line, for a damaged line that is not the last, a line that is no JSON object, and
    for what is no readable file.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}).") from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path}:{number}: not a JSON line ({error}). The file was altered.") from error
        if not isinstance(row, dict):
            raise RunError(f"{path}:{number}: not a JSON object ({line[:40]}). The file was altered.")
        rows.append(row)
    return rows


def tail_jsonl(path: Path, most_bytes: int = 1 << 17) -> list[dict[str, Any]]:
    """The last complete lines of a file that is being written; lines that are no JSON object are passed over.

    A reader that looks while a run is rewound may meet anything; who reads the whole (:func:`read_jsonl`) names damage.
    """
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - most_bytes))
            lines = stream.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}).") from error
    if size > most_bytes:
        lines = lines[1:]
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def truncate_jsonl(path: Path, keep_lines: int) -> None:
    """Cut ``path`` after its first ``keep_lines`` lines. Raises RunError if it has fewer."""
    if keep_lines == 0 and not path.exists():
        return
    data = path.read_bytes() if path.exists() else b""
    position = 0
    for number in range(keep_lines):
        position = data.find(b"\n", position) + 1
        if position == 0:
            raise RunError(f"{path} has {number} lines where the checkpoint expects {keep_lines}: it was altered.")
    with path.open("r+b") as stream:
        stream.truncate(position)
        os.fsync(stream.fileno())


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


def number(value: Any) -> float | None:
    """A finite number, or None for whatever else stands in its place."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
