"""A table for people, before it is printed or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NONE = "–"  # noqa: RUF001 - an en dash: no value


@dataclass(frozen=True)
class Table:
    """Rows of text, with as many cells as ``header``; the first cell of each names it.

    Attributes:
        title: what the table shows.
        texts: columns (from 0) that hold words and not numbers, besides the first.
        note: what to know about its numbers.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: Sequence[int] = ()
    note: str = ""
