"""Dotted overrides: `optimizer.lr=1e-6`."""

from __future__ import annotations

from typing import Any

from rlvr_cli.config.keys import sections
from rlvr_cli.config.origins import NAMED_SECTIONS, Layer
from rlvr_cli.config.yaml_reader import YamlProblem, parse

SHOWN = 80


def label(text: str) -> str:
    """How an override is named in messages."""
    line = " ".join(text.split())
    return f"override {line if len(line) <= SHOWN else line[: SHOWN - 3] + '...'}"


def parse_override(text: str) -> Layer:
    """One override as a layer.

    Raises:
        ValueError: the message for the user, where `text` is not `section.key=value` with a YAML value.
    """
    name, equals, written = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ValueError("expected `section.key=value`, as in optimizer.lr=1e-6")
    path = name.split(".")
    if not all(path):
        raise ValueError(f"`{name}` has an empty part between its dots; expected `section.key=value`")
    if len(path) > 2 and path[0] in sections():
        raise ValueError(f"`{path[0]}.{path[1]}` is one value: set it whole, as in `{path[0]}.{path[1]}=...`")
    try:
        value = parse(written).data
    except YamlProblem as problem:
        raise ValueError(f"the value `{written[:SHOWN]}`: {problem.message}") from None
    return Layer(label(text), _nested(path, value))


def _nested(path: list[str], value: Any) -> dict[Any, Any]:
    if len(path) == 1 and value is None and path[0] in NAMED_SECTIONS:
        value = {"name": None}
    for part in reversed(path):
        value = {part: value}
    return dict(value)
