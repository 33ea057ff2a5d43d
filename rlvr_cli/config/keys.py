"""The list of configuration keys, read off the schema: type and bounds in words, default, meaning."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, StringConstraints
from pydantic.fields import FieldInfo

from rlvr_cli.config.schema import RUN_NAME, Config

Section = type[BaseModel]


@dataclass(frozen=True)
class Key:
    """One configuration key: dotted name, what values it takes, default and meaning."""

    name: str
    type: str
    default: Any
    meaning: str
    variant: str | None


def sections() -> dict[str, tuple[Section, ...]]:
    """Section name -> its schema; more than one where `name` chooses between several (task, method)."""
    found = {}
    for name, field in Config.model_fields.items():
        variants = get_args(field.annotation) or (field.annotation,)
        found[name] = tuple(variant for variant in variants if isinstance(variant, type))
    return found


def all_keys() -> list[Key]:
    """Every key, in the order of the schema."""
    keys = []
    for section, variants in sections().items():
        for variant in variants:
            for name, field in variant.model_fields.items():
                key = Key(
                    name=f"{section}.{name}",
                    type=describe_field(field),
                    default=field.get_default(call_default_factory=True),
                    meaning=field.description or "",
                    variant=variant.__name__ if len(variants) > 1 else None,
                )
                keys.append(key)
    return keys


def variant_names(section: str) -> list[str]:
    """What `<section>.name` may be, for a section whose schema lists its names (task, method); else empty."""
    names: list[str] = []
    for variant in sections()[section]:
        field = variant.model_fields.get("name")
        if field is not None and get_origin(field.annotation) is Literal:
            names += get_args(field.annotation)
    return names


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name most like `word`, or None where none is as close as `cutoff` (1 = equal)."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def suggest_key(path: Sequence[str]) -> str | None:
    """The key that someone who wrote the unknown `path` most likely meant.

    A name close to one in the same section wins; then a key of that very name in another section; then the
    closest dotted name.
    """
    schemas = sections()
    if len(path) >= 2 and path[0] in schemas:
        fields = [name for variant in schemas[path[0]] for name in variant.model_fields]
        close = nearest(path[1], fields)
        if close:
            return close
    dotted = [key.name for key in all_keys()]
    same_name = [name for name in dotted if name.split(".")[1] == path[-1]]
    if same_name:
        return " or ".join(same_name)
    if len(path) == 1:
        return nearest(path[0], schemas)
    if path[0] not in schemas:
        section = nearest(path[0], schemas)
        if section and any(path[1] in variant.model_fields for variant in schemas[section]):
            return f"{section}.{path[1]}"
    return nearest(".".join(path), dotted, cutoff=0.8)


def describe_field(field: FieldInfo) -> str:
    """What a key takes, in words: `a whole number, at least 1`."""
    return describe_type(field.annotation, tuple(field.metadata))


def describe_type(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """`describe_field` for a bare annotation."""
    if get_origin(annotation) is Annotated:
        base, *more = get_args(annotation)
        return describe_type(base, (*metadata, *more))
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        parts = [describe_type(part, metadata) for part in arguments if part is not type(None)]
        return ", or ".join((["null"] if type(None) in arguments else []) + parts)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"a list of at least one value, each {describe_type(arguments[0])}"
        return f"a list of {len(arguments)} values, each {describe_type(arguments[0])}"
    if origin is dict:
        return f"a mapping from {describe_type(arguments[0])}, to {describe_type(arguments[1])}"
    if annotation is str:
        return _describe_text(metadata)
    word = {int: "a whole number", float: "a number", bool: "true or false"}[annotation]
    bounds = list(_bounds(metadata))
    return ", ".join([word, " and ".join(bounds)]) if bounds else word


def _describe_text(metadata: Iterable[Any]) -> str:
    patterns = [item.pattern for item in metadata if isinstance(item, StringConstraints)]
    if RUN_NAME in patterns:
        return "a name of letters, digits and _ - . +, starting with a letter, digit or _, at most 100 long"
    return "text, not empty, on one line" if patterns else "text"


def _bounds(metadata: Iterable[Any]) -> Iterable[str]:
    words = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from _bounds(item.metadata)
        for name, word in words:
            if hasattr(item, name):
                yield f"{word} {_plain(getattr(item, name))}"


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)
