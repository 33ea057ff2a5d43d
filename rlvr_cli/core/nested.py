"""Nested mappings and their flat form with joined keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(values: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """Return the values of nested mappings with their joined keys, as `policy_loss.n`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}{separator}{name}": leaf for name, leaf in flatten(value, separator).items()}
        else:
            flat[str(key)] = value
    return flat


def to_tuples(value: Any) -> Any:
    """Replace the lists in nested mappings and lists by tuples."""
    if isinstance(value, Mapping):
        return {key: to_tuples(inner) for key, inner in value.items()}
    return tuple(map(to_tuples, value)) if isinstance(value, list) else value


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        section = root
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    return root
