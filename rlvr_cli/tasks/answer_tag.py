"""Where the papers' code finds the answer in a response: the last block of ``<answer>`` tags."""

from __future__ import annotations

_OPEN, _CLOSE = "<answer>", "</answer>"


def last_answer(text: str) -> str | None:
    """The last block that a search for ``<answer>(.*?)</answer>`` finds, in linear time; None where there is none."""
    answer, position = None, 0
    while True:
        start = text.find(_OPEN, position)
        end = text.find(_CLOSE, start + len(_OPEN)) if start >= 0 else -1
        if end < 0:
            return answer
        answer = text[start + len(_OPEN) : end].strip()
        position = end + len(_CLOSE)
