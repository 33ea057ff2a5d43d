"""Lines of JSONL files that people made, and the report of what is wrong with them."""

from __future__ import annotations

import gzip
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

    Raises UserError when the file cannot be read.
    """
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8") if path.name.endswith(".gz") else path.open(encoding="utf-8")
        ) as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}). JSON lines in UTF-8 are read.") from error


def raise_if(problems: Sequence[str]) -> None:
    """Raise UserError with the first ``problems`` and the number of the others, if there are any."""
    if not problems:
        return
    shown = list(problems[:_SHOWN])
    if len(problems) > _SHOWN:
        shown.append(f"... and {len(problems) - _SHOWN} more rows like these")
    raise UserError(shown, note=_NOTHING_STARTED)
