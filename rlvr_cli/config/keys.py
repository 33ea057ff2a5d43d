"""The list of configuration keys, read off the schema: type and bounds in words, default, meaning."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import StringConstraints
from pydantic.fields import FieldInfo

from rlvr_cli.config.other_names import key_for
from rlvr_cli.config.schema import RUN_NAME, Config
from rlvr_cli.config.tree import Path, Variant, choices, default, discriminator, variants
from rlvr_cli.core.text import nearest
from rlvr_cli.methods.method import MethodName


@dataclass(frozen=True)
class Key:
    """One configuration key.

    Attributes:
        name: dotted, `method.policy_loss.n`.
        type: the values that it takes, in words.
        default: its default.
        meaning: a sentence.
        kinds: the choices of its section that have this key, each with this very default and meaning; empty
            where the section has but one variant.
    """

    name: str
    type: str
    default: Any
    meaning: str
    kinds: tuple[str, ...] = ()


def sections() -> dict[str, tuple[Variant, ...]]:
    """Section name -> its schema; more than one where `name` chooses between several (task, method)."""
    return {name: variants((name,)) for name in Config.model_fields}


@cache
def section_names() -> tuple[str, ...]:
    """Every section by its dotted name: `method`, `method.policy_loss`, ..."""
    return tuple(dict.fromkeys(".".join(path) for path in _sections_below(())))


@cache
def all_keys() -> tuple[Key, ...]:
    """Every key, in the order of the schema; a key of several kinds stands once for each meaning that it has."""
    return tuple(_keys_below(()))


def key_names() -> tuple[str, ...]:
    """The dotted name of every key, each once."""
    return tuple(dict.fromkeys(key.name for key in all_keys()))


def suggest_key(path: Sequence[str], own: Variant | None = None) -> str | None:
    """The key that someone who wrote the unknown `path` most likely meant.

    A key of that very name deeper in the same section wins, then a name close to one beside it, the key that TRL or
    Hugging Face call so (first, where no section is named), a key of that name anywhere, and the closest dotted name.
    `kl_beta` is taken for `kl.beta`.

    Args:
        own: the variant that the section has, where it has several; its keys are preferred.
    """
    path = tuple(path)
    other = key_for(path[-1])
    if len(path) == 1 and other:
        return other
    # A section that a plain value sets is as good as its key.
    plain = [name for name in section_names() if any(one.main_key for one in variants(tuple(name.split("."))))]
    names = (*plain, *key_names())
    same_name = [name for name in names if f".{name}".replace(".", "_").endswith(f"_{path[-1]}".replace(".", "_"))]
    if len(path) > 1:
        inside = [name for name in same_name if name.startswith(f"{path[0]}.")]
        if inside:
            return " or ".join(inside)
        beside = [name for variant in variants(path[:-1]) for name in variant.model_fields]
        close = nearest(path[-1], own.model_fields if own else beside) or nearest(path[-1], beside)
        if close:
            return close
        if other:
            return other
    if same_name:
        return " or ".join(same_name)
    if len(path) == 1:
        return nearest(path[0], sections())
    if path[0] not in sections():
        section = nearest(path[0], sections())
        if section and f"{section}.{'.'.join(path[1:])}" in names:
            return f"{section}.{'.'.join(path[1:])}"
    alike = [name for name in names if nearest(path[-1], [name.rsplit(".", 1)[-1]])]
    return nearest(".".join(path), alike, cutoff=0.8)


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
            least = "at least one value" if any(getattr(item, "min_length", 0) for item in metadata) else "values"
            return f"a list of {least}, each {describe_type(arguments[0])}"
        return f"a list of {len(arguments)} values, each {describe_type(arguments[0])}"
    if origin is dict:
        return f"a mapping from {describe_type(arguments[0])}, to {describe_type(arguments[1])}"
    if annotation is str:
        return _describe_text(metadata)
    if hasattr(annotation, "described"):
        return str(annotation.described)
    word = {int: "a whole number", float: "a number", bool: "true or false"}[annotation]
    bounds = list(_bounds(metadata))
    return ", ".join([word, " and ".join(bounds)]) if bounds else word


def _sections_below(path: Path) -> Iterator[Path]:
    for variant in variants(path):
        for name in variant.model_fields:
            if variants((*path, name)):
                yield (*path, name)
                yield from _sections_below((*path, name))


def _keys_below(path: Path) -> Iterator[Key]:
    chooser, listed = discriminator(path), choices(path)
    found = variants(path)
    if len(found) > 1 and len(listed) == len(found):
        yield _choice_key((*path, str(chooser)), listed)
    keys: dict[tuple[Any, ...], Key] = {}
    for variant in found:
        label = next((tag for tag, other in listed.items() if other is variant), None) if len(found) > 1 else None
        for name, field in variant.model_fields.items():
            place = (*path, name)
            if variants(place):
                yield from keys.values()
                keys.clear()
                yield from _keys_below(place)
                continue
            if name == chooser and len(found) > 1 and label is not None:
                continue
            key = _key(place, field)
            before = keys.get((key.name, key.type, repr(key.default), key.meaning))
            kinds = (*(before.kinds if before else ()), *([label] if label else []))
            keys[(key.name, key.type, repr(key.default), key.meaning)] = Key(
                key.name, key.type, key.default, key.meaning, kinds
            )
    yield from keys.values()


def _key(path: Path, field: FieldInfo) -> Key:
    return Key(
        name=".".join(path),
        type=describe_field(field),
        default=field.get_default(call_default_factory=True),
        meaning=field.description or "",
    )


def _choice_key(path: Path, listed: dict[str, Variant]) -> Key:
    """The key that chooses between variants: the meaning of each, one after the other."""
    meanings = [variant.model_fields[path[-1]].description or "" for variant in listed.values()]
    return Key(
        name=".".join(path),
        type=f"one of {', '.join(listed)}",
        default=getattr(default(path[:-1]), path[-1]),
        meaning=" ".join(meanings),
    )


def _describe_text(metadata: Iterable[Any]) -> str:
    metadata = tuple(metadata)
    if any(item in metadata for item in get_args(MethodName)[1:] if not isinstance(item, StringConstraints)):
        return "the name of a method, modifiers joined with +"
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
