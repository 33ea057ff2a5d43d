"""Files: user paths, atomic replacement, JSON lines, locks, and checks of --input and --output."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import math
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TextIO

from rlvr_cli.core.errors import RunError, UserError


def local_path(name: str) -> Path:
    """Return ``name`` as a path, expanding a leading ``~`` or ``~user`` if that user exists."""
    with suppress(RuntimeError):
        return Path(name).expanduser()
    return Path(name)


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` atomically."""
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


# A temporary folder of another host, whose processes are not visible, counts as in use for this time, in seconds.
_OTHER_HOST_SECONDS = 3600.0


@contextmanager
def replace_folder(target: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield an empty folder next to ``target`` that atomically replaces it when the context ends.

    If interrupted, including by Ctrl-C, keep or restore the older ``target``. The next call cleans up after a killed
    process. Raises OSError for a disk error, or if ``target`` exists without ``overwrite``.
    """
    clean_up(target)
    new, old = temporary_path(target, "new"), temporary_path(target, "old")
    new.mkdir()
    try:
        yield new
        if overwrite and target.exists():
            target.rename(old)
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    clean_up(target)
    fsync(target.parent)


def temporary_path(target: Path, role: Literal["new", "old", "replaced"]) -> Path:
    return target.with_name(f".{target.name}.{role}-{os.getpid()}@{socket.gethostname()}")


def clean_up(target: Path) -> None:
    """Restore ``target`` after a process was killed between its renames, and delete leftovers."""
    import psutil  # slow to import, and most commands replace no folder

    for path in target.parent.glob(f".{glob.escape(target.name)}.*-*"):
        match = re.fullmatch(r"(new|old|replaced)-(\d{1,9})@(.+)", path.name.removeprefix(f".{target.name}."))
        if not match or is_held(path):
            continue
        if match[3] == socket.gethostname():
            in_use = psutil.pid_exists(int(match[2]))
        else:  # on a machine that shares the disk
            in_use = time.time() - path.stat().st_ctime < _OTHER_HOST_SECONDS
        if in_use:
            continue
        if match[1] != "new" and not target.exists():
            path.rename(target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as strict JSON (NaN and infinity raise ValueError)."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def open_for_append(path: Path) -> TextIO:
    """Open a record for reading and appending; create it if missing. Raises UserError for a symbolic link."""
    check_no_link(path)
    return os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666), "a+", encoding="utf-8")


def check_no_link(path: Path) -> None:
    """Raise UserError for a symbolic link in place of a recorded file or folder: its target could be overwritten."""
    if path.is_symlink():
        raise UserError(
            f"{path}: is a link to {path.readlink()}, whose content would be overwritten. Put the file or folder "
            "itself there; to keep it on another disk, link its parent folder."
        )


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]], *, durable: bool = False) -> None:
    """Append ``rows`` in one write; ``durable``: sync them. Raises ValueError for NaN or infinity."""
    text = "".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    with open_for_append(path) as stream:
        stream.write(text)
        stream.flush()
        if durable:
            os.fsync(stream.fileno())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the rows of ``path``, ignoring an incomplete last line of a killed writer.

    Raises RunError, with file and line, for an unreadable file, a damaged earlier line, and lines that are not JSON
    objects.
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


def tail_jsonl(path: Path, max_bytes: int = 1 << 17) -> list[dict[str, Any]]:
    """Return the last complete rows of a file being written, even during a rewind; skip invalid lines."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - max_bytes))
            lines = stream.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}).") from error
    if size > max_bytes:
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
    check_no_link(path)
    data = path.read_bytes() if path.exists() else b""
    position = 0
    for number in range(keep_lines):
        position = data.find(b"\n", position) + 1
        if position == 0:
            raise RunError(f"{path} has {number} lines; the checkpoint expects {keep_lines}. The file was altered.")
    with path.open("r+b") as stream:
        stream.truncate(position)
        os.fsync(stream.fileno())


LOCK = ".lock"
_LOCKED_ERRORS = (errno.EWOULDBLOCK, errno.EACCES)
# `is_held` takes the lock briefly; retry after these seconds so that it is not mistaken for a writer.
_PAUSES = (0.001, 0.004, 0.015, 0.05)


@contextmanager
def lock_folder(folder: Path, advice: str, file: str | None = None) -> Iterator[None]:
    """Hold the lock of ``folder``, or only of its ``file``, inside the context.

    Raises UserError, ending in ``advice``, if another process holds it, or for a link; OSError for disk errors.
    """
    held = folder if file is None else folder / file
    lock = LOCK if file is None else f".{file}{LOCK}"
    with open_for_append(folder / lock) as stream:
        try:
            _lock(stream)
        except OSError as error:
            if error.errno not in _LOCKED_ERRORS:
                raise
            stream.seek(0)
            holder = stream.read().strip() or "unknown"
            raise UserError(f"{held}: in use by another process (pid {holder}). {advice}") from error
        stream.seek(0)
        stream.truncate()
        stream.write(f"{os.getpid()}@{socket.gethostname()}\n")
        stream.flush()
        yield


def _lock(stream: TextIO) -> None:
    for pause in _PAUSES:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _LOCKED_ERRORS:
                raise
            time.sleep(pause)
        else:
            return
    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(folder: Path) -> bool:
    """Return whether a process holds the lock of ``folder``."""
    if (folder / LOCK).is_symlink():
        return False  # not lockable
    try:
        stream = (folder / LOCK).open(encoding="utf-8")
    except (FileNotFoundError, PermissionError):
        return False
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _LOCKED_ERRORS:
                raise
            return True
    return False


def wait_for_release(folder: Path, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while is_held(folder):
        if time.monotonic() > end:
            return False
        time.sleep(1.0)
    return True


def finite(value: Any) -> float | None:
    """Return a finite number as a float, None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def output_problems(
    path: Path,
    *,
    source: Path | None = None,
    rows: bool = False,
    overwrite: bool = True,
    companions: Sequence[Path] = (),
) -> list[str]:
    """Return the problems of ``--output``, without creating or opening files.

    ``rows``: the output is read as ``task.data``, which requires .jsonl. ``companions``: further output files.
    """
    if str(path) == "-":
        return ["--output -: cannot be standard output. Name a file."]
    problems = []
    if rows and not path.name.endswith(".jsonl"):
        problems.append(f"--output {path}: must end in .jsonl")
    elif path.name.endswith(".gz"):
        problems.append(f"--output {path}: the output is not compressed. Remove .gz from the name.")
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        return [*problems, f"--output {path}: is the input file. Choose another."]
    for file in (path, *companions):
        problem = _write_problem(file)
        if problem is None and file.exists() and not overwrite:
            problem = f"{file.name} exists. Choose another file, or use --overwrite."
        if problem is not None:
            problems.append(f"--output {path}: {problem}")
    return problems


def resolve_output(path: Path) -> Path:
    """Return the file of ``--output``, links resolved; create its folder. Raises UserError if not writable."""
    if problems := output_problems(path):
        raise UserError(problems)
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {path}: cannot be written ({error.strerror or error}). Choose another.") from error
    return target


def _write_problem(path: Path) -> str | None:
    target = Path(os.path.realpath(path))
    if os.path.lexists(target) and not target.is_file():
        return "is not a regular file. Name another."
    existing = next(folder for folder in target.parents if os.path.lexists(folder))
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    if not writable or (target.exists() and not os.access(target, os.W_OK)):
        return f"cannot be written to {existing}. Choose another."
    return None


def check_input(path: Path) -> None:
    """Raise UserError if ``--input`` is not a regular file, since it is read more than once."""
    if not path.is_file():
        raise UserError(f"--input {path}: must be an existing regular file, because it is read twice. Name a file.")
