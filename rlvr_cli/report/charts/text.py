"""Text from runs that anybody may have written, made safe to show: control characters are shown, not obeyed."""

from __future__ import annotations

import re

# What XML cannot hold, what moves a cursor, and what turns the direction of the text around it.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)


def visible(text: str) -> str:
    """``text`` with an escape such as `\\x1b` for each character that has no picture; tab and newline stay."""
    return _HIDDEN.sub(_escape, text)


def one_line(text: str) -> str:
    """``text`` on one line, with :func:`visible`."""
    return visible(" ".join(text.split()))


def shortened(text: str, most: int) -> str:
    """``text``, or its beginning and end around "…", of ``most`` characters."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
