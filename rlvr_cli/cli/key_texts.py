"""Write the help of options that set keys to a file: `python -m rlvr_cli.cli.key_texts`.

`--help` reads the file, because loading the schema would double its time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import typer

from rlvr_cli.cli.app import app
from rlvr_cli.cli.command import TEXTS, KeyOption
from rlvr_cli.config.keys import KEYS
from rlvr_cli.core.keys import Key
from rlvr_cli.core.yaml import yaml_text

_WIDEST = 20


def key_texts() -> str:
    """Return the file's content: meaning, default and metavar of each key that has an option."""
    names = sorted({option.key for option in _options(typer.main.get_command(app))})
    texts = {name: _text([key for key in KEYS.keys if key.name == name]) for name in names}
    return f"{json.dumps(texts, indent=2, ensure_ascii=False)}\n"


def _options(command: Any) -> Iterator[KeyOption]:
    yield from getattr(command.callback, "key_options", ())
    for child in getattr(command, "commands", {}).values():
        yield from _options(child)


def _text(kinds: list[Key]) -> dict[str, str]:
    key = kinds[0]
    about = [key.name]
    if len(kinds) == 1:  # otherwise the default depends on the kind
        default = list(key.default) if isinstance(key.default, tuple) else key.default
        if default not in (None, []):
            about.append(f"default {default if isinstance(default, str) else yaml_text(default)}")
    return {"meaning": key.meaning, "about": "; ".join(about), "metavar": _metavar(key.type)}


def _metavar(type_text: str) -> str:
    """Return `N` for an integer, `X` for a float, `a|b` for a short choice, else `NAME`; `N,...` for lists."""
    type_text = type_text.removeprefix("null, or ")
    if type_text.startswith("a list of"):
        return f"{_metavar(type_text.partition('each ')[2])},..."
    if type_text.startswith("one of "):
        names = type_text.removeprefix("one of ").replace(", ", "|")
        return names if len(names) <= _WIDEST else "NAME"
    return "N" if type_text.startswith("a whole") else "X" if type_text.startswith("a number") else "TEXT"


if __name__ == "__main__":
    TEXTS.write_text(key_texts(), encoding="utf-8")
