"""Beginnings of files of the user's own, real ones that run as they are, for `rlvr new`."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
KINDS = ("task", "reward", "method")


def text_of(kind: str, name: str) -> str:
    """The beginning of a file ``kind`` called ``name``, which has letters, digits, - and _."""
    plain = name.lower().replace("-", "_")
    words = plain.split("_")
    text = (FOLDER / f"{kind}.py").read_text(encoding="utf-8")
    for old, new in (
        (f"My {kind.title()}", " ".join(words).capitalize()),
        (f"My{kind.title()}", "".join(word.capitalize() for word in words)),
        (f"my_{kind}", plain),
        (f"my-{kind}", plain.replace("_", "-")),
    ):
        text = text.replace(old, new)
    return text
