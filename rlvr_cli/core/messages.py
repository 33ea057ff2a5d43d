"""Turn pydantic errors into one message per key, with the allowed values and a suggestion."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlvr_cli.core.keys import Schema, Variant, describe_field, fields, normalize_name, schema_of
from rlvr_cli.core.section import Section
from rlvr_cli.core.text import did_you_mean, join_and
from rlvr_cli.core.yaml import KeyPath, yaml_text

_PLAIN = re.compile(r"[^\s\"'`]+")
S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class Fault:
    """An invalid key or section; ``value_path``: the key, or the invalid component of its value."""

    path: KeyPath
    value_path: KeyPath
    message: str

    def __str__(self) -> str:
        return f"{dotted_name(self.path)}: {self.message}" if self.path else self.message


def read_section(model: type[S], data: Any, name: str = "") -> tuple[S | None, list[Fault]]:
    """Validate plain data as section ``name``; return the section, None if invalid, and the faults."""
    schema = schema_of(model, name)
    data = copy.deepcopy(data)
    problems = drop_odd_keys(schema, data)
    try:
        section = model.model_validate(data)
    except ValidationError as error:
        problems += convert_errors(schema, data, error)
    return (None, problems) if problems else (section, [])


def convert_errors(schema: Schema, data: Any, error: ValidationError) -> list[Fault]:
    by_path: dict[KeyPath, Fault] = {}
    for detail in error.errors(include_url=False, include_context=False):
        path, value_path = _locate(schema, detail, data)
        if detail["type"] == "extra_forbidden" and len(path) == 1:
            leaves = _leaves(path, value_at(data, path))
            is_section = not _is_foreign(schema, path[0]) and any(_is_foreign(schema, leaf[-1]) for leaf in leaves)
            for leaf in leaves if is_section else [path]:
                alone = functools.reduce(lambda value, key: {key: value}, reversed(leaf), value_at(data, leaf))
                by_path.setdefault(leaf, Fault(path, leaf, _unknown_key_message(schema, path, alone)))
        else:
            by_path.setdefault(path, Fault(path, value_path, _fault_message(schema, detail, path, value_path, data)))
    return list(by_path.values())


def _is_foreign(schema: Schema, key: Any) -> bool:
    """Return whether a key is one of another program, so that a mapping below it is its value."""
    return normalize_name(str(key)) in schema.other_names


def _leaves(path: KeyPath, value: Any) -> list[KeyPath]:
    """Return the paths of the values in nested mappings."""
    inner = value.items() if isinstance(value, dict) else ()
    return [leaf for key, below in inner for leaf in _leaves((*path, key), below)] or [path]


def drop_odd_keys(schema: Schema, data: Any) -> list[Fault]:
    """Remove keys that are not text from ``data`` and return their faults."""
    odd = [path for path in iter_set_paths(schema, data) if not isinstance(path[-1], str)]
    unknown = [Fault(path, path, _unknown_key_message(schema, path, data)) for path in odd]
    for path in odd:
        del value_at(data, path[:-1])[path[-1]]
    return unknown


def iter_set_paths(schema: Schema, values: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of every section and key that is set."""
    for key, value in values.items() if isinstance(values, dict) else ():
        below = (*path, key)
        yield below
        if isinstance(value, dict) and schema.variants(below):
            yield from iter_set_paths(schema, value, below)


def value_at(data: Any, path: KeyPath) -> Any:
    """Return the value at `path`; None if absent."""
    for key in path:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def dotted_name(path: KeyPath) -> str:
    """Return a path as a name: `optimizer.lr`."""
    return ".".join(key if isinstance(key, str) and _PLAIN.fullmatch(key) else yaml_text(key) for key in path)


def _locate(schema: Schema, detail: ErrorDetails, data: Any) -> tuple[KeyPath, KeyPath]:
    """Return the paths of the key and the invalid value: pydantic's location without its type names."""
    path: KeyPath = ()
    rest = list(detail["loc"])
    while rest:
        if len(schema.variants(path)) > 1:
            rest.pop(0)
        elif path and not schema.variants(path) and not schema.variants((*path, rest[0])):
            break
        if rest:
            path = (*path, rest.pop(0))
    if detail["type"].startswith("union_tag"):
        path = (*path, schema.chooser(path))
        return path, path
    # A plain value may abbreviate a mapping, and a mapping a list.
    while path and detail["type"] != "missing" and not _has_value(data, path):
        path = path[:-1]
    value_path = path
    for key in rest:
        if not _has_value(data, (*value_path, key)):
            break
        value_path = (*value_path, key)
    return path, value_path


def _has_value(data: Any, path: KeyPath) -> bool:
    """Return whether ``data`` has a value, possibly null, at ``path``."""
    parent = value_at(data, path[:-1])
    if isinstance(parent, list):
        return isinstance(path[-1], int) and path[-1] < len(parent)
    return isinstance(parent, dict) and path[-1] in parent


def _fault_message(schema: Schema, detail: ErrorDetails, path: KeyPath, value_path: KeyPath, data: Any) -> str:
    kind, declared = detail["type"], schema.field(path)
    if kind == "extra_forbidden":
        return _unknown_key_message(schema, path, data)
    if kind == "missing" and not _has_value(data, path):
        return f"is missing; must be {_describe_allowed(schema, path)}"
    if kind == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    value = value_at(data, path)
    if schema.variants(path):
        return f"must be {_describe_allowed(schema, path)}; got {yaml_text(value)}"
    section, key = path[:-1], path[-1]
    listed = schema.choices(section)
    if key == schema.chooser(section) and len(listed) == len(schema.variants(section)):
        hint = did_you_mean(value, listed) if isinstance(value, str) else ""
        more = schema.variants(section)[0].unknown_choice_hint(value)
        chosen = section[-1] if key == "name" else f"{section[-1]} {key}"
        return f"unknown {chosen} {yaml_text(value)}.{more or hint} Allowed: {', '.join(listed)}"
    variant = schema.chosen(section, value_at(data, section))
    declared = fields(variant).get(key, declared) if variant is not None else declared
    assert declared is not None
    # An invalid key is printed with its mapping.
    inner = value_path[:-1] if "[key]" in detail["loc"] and value_path != path else value_path
    got = yaml_text(value) if inner == path else f"{yaml_text(value_at(data, inner))} in {yaml_text(value)}"
    return f"must be {describe_field(declared)}; got {got}{_remedy(value, declared.annotation)}"


def _describe_allowed(schema: Schema, path: KeyPath) -> str:
    declared, variants = schema.field(path), schema.variants(path)
    if declared is not None and (declared.title or not variants):
        return describe_field(declared)
    if schema.choices(path) and schema.chooser(path) == "kind":
        return f"one of {', '.join(schema.choices(path))}, or a mapping with the key kind and its parameters"
    return f"a mapping with the keys {_key_names(variants)}"


def _unknown_key_message(schema: Schema, path: KeyPath, data: Any) -> str:
    section, key = path[:-1], path[-1]
    values = value_at(data, section)
    chosen = schema.chosen(section, values)
    others = [variant for variant in schema.variants(section) if variant is not chosen and key in fields(variant)]
    if others:
        return _other_kind_message(schema, path, values, others)
    written = path if _is_foreign(schema, key) else follow_single_keys(path, value_at(data, path))
    name, value = normalize_name(str(written[-1])), value_at(data, written)
    guess = schema.suggest([str(step) for step in path])
    # The name of another program's key is more specific than that of its section.
    misleads = not guess or (written != path and guess not in schema.section_names)
    as_written = section or name in schema.other_names or misleads
    guess = schema.suggest([str(step) for step in written], chosen if section else None) if as_written else guess
    equivalent = schema.equivalent(name, value)
    if equivalent == "":
        return f"unknown key. {name}={yaml_text(value)} has no equivalent{schema.other_meanings.get(name, '')}"
    guess = equivalent or guess
    if guess == dotted_name(path) and "." in key:
        steps = reversed(key.split("."))
        inner = yaml_text(value_at(data, path))
        nested = functools.reduce(lambda text, step: f"{{{step}: {text}}}", steps, inner)
        return f"unknown key. Keys are nested in a file: write {nested[1:-1]}"
    hint = " Did you mean " + " or ".join(f"`{name}`" for name in guess.split(" or ")) + "?" if guess else ""
    hint += schema.other_meanings.get(name, "") if guess == schema.other_names.get(name) else ""
    if guess and schema.command:
        return f"unknown key.{hint}"
    top = fields(schema.root)
    if not section and all(schema.variants((name,)) for name in top):
        more = "; in a file also `include`" if schema.include else ""
        return f"unknown section.{hint} Sections: {', '.join(top)}{more}"
    of = f" of {dotted_name(section) or schema.name}" if section or schema.name else ""
    return f"unknown key.{hint} Keys{of}: {_key_names((chosen,) if chosen else schema.variants(section))}"


def _other_kind_message(schema: Schema, path: KeyPath, values: Any, others: list[Variant]) -> str:
    """Return the message for a key of another kind of the section."""
    section, key = path[:-1], path[-1]
    chooser = schema.chooser(section)
    tags = [tag for tag, variant in schema.choices(section).items() if variant in others]
    is_kind = chooser == "kind"
    subject = f"{section[-1]} kind" if is_kind else section[-1]
    tag = values.get(chooser, getattr(schema.default(section), chooser))
    if not tags:
        return f"{subject} {tag} has no {key}; other {section[-1]}s have it."
    listed = f"{join_and(tags)} {'have' if len(tags) > 1 else 'has'}"
    chosen_key = dotted_name((*section, chooser) if is_kind else section)
    hint = f" Did you mean {chosen_key}={tags[0]}?" if len(tags) == 1 else ""
    return f"{subject} {tag} has no {key}; {listed}.{hint}"


def follow_single_keys(path: KeyPath, value: Any) -> KeyPath:
    """Extend `path` through mappings of one key, as from the dotted name `update.kl.beta=0`."""
    while isinstance(value, dict) and len(value) == 1:
        ((key, value),) = value.items()
        path = (*path, key)
    return path


def _key_names(variants: tuple[Variant, ...]) -> str:
    return ", ".join(dict.fromkeys(name for variant in variants for name in fields(variant))) or "none"


def _remedy(value: Any, annotation: Any) -> str:
    if isinstance(value, float) and value.is_integer() and annotation in (int, int | None):
        return f" (write {int(value)})"
    if isinstance(value, str) and value.replace(".", "", 1).isdigit() and annotation is not str:
        return " (text: remove the quotes)"
    if annotation is bool and isinstance(value, str) and value.lower() in ("yes", "no", "on", "off"):
        return " (YAML 1.2 has no yes and no)"
    return ""
