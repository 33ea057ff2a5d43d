"""Dotted overrides: `optimizer.lr=1e-6`, `method.policy_loss.n=2`."""

from __future__ import annotations

from typing import Any

from rlvr_cli.config.origins import Layer
from rlvr_cli.config.tree import discriminator, is_known, variants
from rlvr_cli.core.text import without_secrets
from rlvr_cli.core.yaml import YamlProblem, parse

SHOWN = 80


def label(text: str) -> str:
    """How an override is named in messages; secrets in an address are not shown."""
    line = without_secrets(" ".join(text.split()))
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
    path = tuple(name.split("."))
    if not all(path):
        raise ValueError(f"`{name}` has an empty part between its dots; expected `section.key=value`")
    for length in range(1, len(path)):
        if is_known(path[:length]) and not variants(path[:length]):
            key = ".".join(path[:length])
            raise ValueError(f"`{key}` is one value: set it whole, as in `{key}=...`")
    try:
        value = parse(written).data
    except YamlProblem as problem:
        raise ValueError(f"the value `{written[:SHOWN]}`: {problem.message}") from None
    return Layer(label(text), _nested(path, value))


def choices_first(layers: list[Layer]) -> list[Layer]:
    """The overrides of one command line in the order in which they are laid over one another.

    As written, but what chooses a method or a kind goes first: it would drop the parameters that stand before it.
    """
    return sorted(layers, key=_rank)


def _rank(layer: Layer) -> int:
    """How deep a choice is made; behind every choice for anything else."""
    path: tuple[Any, ...] = ()
    value: Any = layer.data
    while isinstance(value, dict) and len(value) == 1:
        ((key, value),) = value.items()
        path = (*path, key)
    if path[-1] == discriminator(path[:-1]):
        return len(path)
    if discriminator(path) and not isinstance(value, dict):
        return len(path) + 1
    return 1000


def _nested(path: tuple[str, ...], value: Any) -> dict[Any, Any]:
    if value is None and discriminator(path):
        value = {discriminator(path): None}
    for part in reversed(path):
        value = {part: value}
    return dict(value)
