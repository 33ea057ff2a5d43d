"""Lines of JSONL files that people made: their values, and the report of what is wrong with them."""

from __future__ import annotations

import codecs
import gzip
import json
import math
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import More, UserError

_SHOWN = 10
_NOTHING_STARTED = "Nothing was started."


def is_jsonl(path: Path) -> bool:
    """Whether the name is that of a file :func:`lines` reads."""
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of every line that is not blank, of a ``.jsonl`` or ``.jsonl.gz`` file, for :func:`parsed`.

    A byte order mark is left out. Raises UserError when the file cannot be read.
    """
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}). JSON lines in UTF-8 are read.") from error


def output_problems(
    path: Path, *, source: Path | None = None, rows: bool = False, overwrite: bool = True, beside: Sequence[Path] = ()
) -> list[str]:
    """What is wrong with ``--output``; nothing is made or opened.

    Args:
        source: the file that is read.
        rows: ``task.data`` is to read the output, so its name has the ending of such a file.
        overwrite: files that exist are replaced; ``beside``: further files that are written.
    """
    if str(path) == "-":
        return ["--output -: nothing is written to standard output; give a file."]
    found = []
    if rows and not path.name.endswith(".jsonl"):
        found.append(f"--output {path}: must end in .jsonl")
    elif path.name.endswith(".gz"):
        found.append(f"--output {path}: what is written is not compressed; leave .gz out of the name.")
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        return [*found, f"--output {path}: is the file that is read. Choose another."]
    for one in (path, *beside):
        problem = _cannot_be_written(one)
        if problem is None and one.exists() and not overwrite:
            problem = f"{one.name} exists. Choose another file, or give --overwrite."
        if problem is not None:
            found.append(f"--output {path}: {problem}")
    return found


def output_file(path: Path) -> Path:
    """The file to write for ``--output``: what a link leads to. Its folder is made.

    Raises UserError where ``path`` is something else than a file, or its folder cannot be made or written in.
    """
    if problems := output_problems(path):
        raise UserError(problems)
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output {path}: cannot be written ({error.strerror or error}). Choose another.") from error
    return target


def _cannot_be_written(path: Path) -> str | None:
    target = Path(os.path.realpath(path))
    try:
        kind = target.stat().st_mode if os.path.lexists(target) else stat.S_IFREG
    except OSError as error:
        return f"cannot be written ({error.strerror or error}). Choose another."
    if stat.S_ISDIR(kind):
        return "is a folder; give a file."
    if not stat.S_ISREG(kind):
        return "is a pipe or a device; give a file."
    there = next(folder for folder in target.parents if os.path.lexists(folder))
    if not there.is_dir():
        return f"cannot be written ({there} is no folder). Choose another."
    if not os.access(there, os.W_OK | os.X_OK) or (target.exists() and not os.access(target, os.W_OK)):
        return "cannot be written (Permission denied). Choose another."
    return None


def input_file(path: Path) -> None:
    """Raise UserError where ``--input`` is a pipe or the like: what is read more than once must be a file."""
    if str(path) == "-":
        raise UserError("--input -: standard input is not read, as the input is read twice. Give a file.")
    try:
        kind = path.stat().st_mode
    except OSError as error:
        raise UserError(f"--input {path}: cannot be read ({error.strerror or error}).") from error
    if not stat.S_ISREG(kind):
        raise UserError(f"--input {path}: is no file (a folder, a pipe or a device), and is read twice. Give a file.")


class BadLine(ValueError):
    """What is wrong with a line, to be written behind its place."""


def parsed(line: bytes, objects: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The JSON value that a line is; ``objects`` makes an object of its pairs, as ``object_pairs_hook``.

    Raises:
        BadLine: it is no UTF-8 or no JSON (NaN and Infinity are none), holds a number that no float holds (1e400), or
            its brackets are nested deeper than the reader goes.
    """
    try:
        text = line.decode("utf-8")
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=objects)
    except UnicodeDecodeError as error:
        wrong = f"not UTF-8 (byte {error.start + 1} of the line, 0x{error.object[error.start]:02x})"
        raise BadLine(wrong) from error
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not a JSON object ({type(error).__name__}: {str(error)[:80]})") from error


def text_problem(value: Any) -> str | None:
    """What keeps a JSON value from being written as UTF-8, if anything does: half a surrogate pair, as "\\ud800"."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        return f"{half} is half of a surrogate pair, which no text has; take it out, or write the whole character"
    except RecursionError:
        return "lists or objects nested too deeply"
    return None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is larger than any float")
    return value


def raise_if(problems: Sequence[str]) -> None:
    """Raise UserError with the first ``problems`` and the number of the others, if there are any."""
    if not problems:
        return
    shown = list(problems[:_SHOWN])
    if len(problems) > _SHOWN:
        further = len(problems) - _SHOWN
        shown.append(More(f"... and {further} more rows like these", further))
    raise UserError(shown, note=_NOTHING_STARTED)
