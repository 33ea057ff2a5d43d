"""The shape of the configuration: which sections stand where, and which key chooses between their variants."""

from __future__ import annotations

import types
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from rlvr_cli.config.schema import Config
from rlvr_cli.core.section import Choice, Section

Path = tuple[Any, ...]
Variant = type[Section]

# Sections whose `name` says what they are about; `run.name` is a name like any other.
NAMED_SECTIONS = ("model", "task", "method")


@cache
def variants(path: Path) -> tuple[Variant, ...]:
    """The schemas that a section at `path` may have; empty where a value stands, or nothing."""
    if not path:
        return (Config,)
    found: list[Variant] = []
    for parent in variants(path[:-1]):
        field = parent.model_fields.get(path[-1]) if isinstance(path[-1], str) else None
        if field is not None:
            found += _sections_of(field.annotation)
    return tuple(found)


def is_known(path: Path) -> bool:
    """Whether some variant has a key or a section at `path`."""
    return any(path[-1] in parent.model_fields for parent in variants(path[:-1]))


@cache
def discriminator(path: Path) -> str | None:
    """The key of a section that says which one it is (`name` of a method, `kind` of a weight), if it has one."""
    if len(path) == 1 and path[0] in NAMED_SECTIONS:
        return "name"
    return "kind" if any("kind" in variant.model_fields for variant in variants(path)) else None


@cache
def plain_key(path: Path) -> str | None:
    """The key that a plain value in the place of the section at `path` sets: its discriminator, or its main key."""
    return discriminator(path) or next((variant.main_key for variant in variants(path) if variant.main_key), None)


def choices(path: Path) -> dict[str, Variant]:
    """What the discriminator of a section may be, where the schema lists it: `clip`, `dgpo`, ..."""
    key = discriminator(path)
    listed = {}
    for variant in variants(path):
        field = variant.model_fields.get(key or "")
        if field is not None and get_origin(field.annotation) is Literal:
            listed.update(dict.fromkeys(get_args(field.annotation), variant))
    return listed


def is_choice(path: Path) -> bool:
    """Whether a section has several variants that the schema lists by name: task, weight; not method."""
    return 1 < len(variants(path)) == len(choices(path))


def chosen(path: Path, values: Any) -> Variant | None:
    """The variant that the `values` of a section choose; the default where they are silent."""
    found = variants(path)
    if len(found) < 2:
        return found[0] if found else None
    tag = values.get(discriminator(path)) if isinstance(values, dict) else None
    if not isinstance(tag, str):
        return type(default(path))
    listed = choices(path)
    others = [variant for variant in found if variant not in listed.values()]
    return listed.get(tag) or next(iter(others), None)


def default(path: Path) -> Any:
    """The default at `path`, of the first variant that has the key."""
    parent = next(variant for variant in variants(path[:-1]) if path[-1] in variant.model_fields)
    return parent.model_fields[path[-1]].get_default(call_default_factory=True)


def key_of(path: Path) -> Path:
    """The key that `path` belongs to: itself, or the key inside whose value it lies."""
    for length in range(1, len(path)):
        if not variants(path[:length]):
            return path[:length]
    return path


def _sections_of(annotation: Any) -> tuple[Variant, ...]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _sections_of(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(found for part in get_args(annotation) for found in _sections_of(part))
    if not (isinstance(annotation, type) and issubclass(annotation, Section)):
        return ()
    return (
        tuple(annotation.kinds.values()) if issubclass(annotation, Choice) and annotation.is_family() else (annotation,)
    )
