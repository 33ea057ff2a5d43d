"""Templates of `rlvr new`: working files of a task, a reward and a method."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def files_of(kind: str, name: str) -> dict[str, str]:
    """Return the files of a template by name, the Python file first; ``name``: letters, digits, - and _."""
    plain = name.lower().replace("-", "_")
    words = plain.split("_")
    named = {
        f"My {kind}": " ".join(words).capitalize(),
        f"My{kind.title()}": "".join(map(str.capitalize, words)),
        f"my_{kind}": plain,
        f"my-{kind}": plain.replace("_", "-"),
    }
    files = {}
    for path in sorted(FOLDER.glob(f"{kind}.*"), key=lambda path: path.suffix != ".py"):
        text = path.read_text(encoding="utf-8")
        for old, new in named.items():
            text = text.replace(old, new)
        files[f"{plain}{path.suffix}"] = text
    return files
