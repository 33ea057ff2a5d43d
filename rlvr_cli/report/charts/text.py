"""Text from runs that anybody may have written, made safe to show: control characters are shown, not obeyed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from rlvr_cli.core.text import visible


def one_line(text: str) -> str:
    """``text`` on one line, with :func:`visible`."""
    return visible(" ".join(text.split()))


def shortened(text: str, most: int) -> str:
    """``text``, or its beginning and end around "…", of ``most`` characters."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def told_apart(names: Sequence[str], most: int) -> dict[str, str]:
    """What each of these names is called in ``most`` characters, no two alike.

    Of names that :func:`shortened` makes equal, the part is kept in which they differ; where that does not do, all get
    a number.
    """
    shown = {name: shortened(name, most) for name in names}
    apart, head = dict(shown), most // 3
    for name in names:
        like = [other for other in names if other != name and shown[other] == shown[name]]
        if like:
            differ = max(_alike(name, other) for other in like)
            start = max(head, differ - most // 4)
            apart[name] = f"{name[:head]}…{name[start : start + most - head - 1]}"
    if len(set(apart.values())) == len(apart):
        return apart
    return {name: f"{place}: {shortened(name, most - 5)}" for place, name in enumerate(shown, start=1)}


def _alike(one: str, other: str) -> int:
    """How many characters they begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
