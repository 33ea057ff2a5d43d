"""A table of the page, and numbers as its cells write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NONE = "–"  # noqa: RUF001 - an en dash: no value


@dataclass(frozen=True)
class Table:
    """Rows of text; the first cell of each names it.

    Attributes:
        caption: what the table shows, in one sentence.
        texts: columns (from 0) that hold words and not numbers, beside the first.
        note: what to know about its numbers.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: tuple[int, ...] = ()
    note: str = ""


def table(
    caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, texts: Sequence[int] = (), note: str = ""
) -> Table:
    """A table of any sequences."""
    return Table(caption, tuple(header), tuple(tuple(row) for row in rows), tuple(texts), note)


def capital(text: str) -> str:
    """``text`` as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def clock(seconds: float) -> str:
    """`8.1 s`, `3.3 min`, `2.1 h`."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
