"""Lines of JSONL files that people made, and the report of what is wrong with them."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlvr_cli.config.errors import UserError

_SHOWN = 10
_NOTHING_STARTED = "Nothing was started."


def is_jsonl(path: Path) -> bool:
    """Whether the name is that of a file :func:`lines` reads."""
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of every line that is not blank, of a ``.jsonl`` or ``.jsonl.gz`` file in UTF-8.

    Raises UserError when the file cannot be read; for lines that are no UTF-8, which are left out, at the end.
    """
    broken = []
    for number, line in raw_lines(path):
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            broken.append(f"{path}:{number}: {no_text(error)}")
    raise_if(broken)


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of every line that is not blank, without a byte order mark. Raises UserError as ``lines``."""
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}). JSON lines in UTF-8 are read.") from error


def no_text(error: UnicodeDecodeError) -> str:
    """What is wrong with a line that is no UTF-8."""
    return f"not UTF-8 (byte {error.start + 1} of the line, 0x{error.object[error.start]:02x})"


def raise_if(problems: Sequence[str]) -> None:
    """Raise UserError with the first ``problems`` and the number of the others, if there are any."""
    if not problems:
        return
    shown = list(problems[:_SHOWN])
    if len(problems) > _SHOWN:
        shown.append(f"... and {len(problems) - _SHOWN} more rows like these")
    raise UserError(shown, note=_NOTHING_STARTED)
