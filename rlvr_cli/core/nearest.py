"""The name that someone most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name most like `word`, or None where none is as close as `cutoff` (1 = equal)."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean X?`, with a leading blank; empty where nothing is near."""
    guess = nearest(word, known)
    return f" Did you mean `{guess}`?" if guess else ""
