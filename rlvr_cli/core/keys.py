"""The keys of a section and its subsections, with their types in words and their meanings."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, StringConstraints
from pydantic.fields import FieldInfo

from rlvr_cli.core.section import Also, Choice, Section
from rlvr_cli.core.text import nearest
from rlvr_cli.core.yaml import KeyPath

Variant = type[Section]


@dataclass(frozen=True)
class Key:
    """One key: dotted name, allowed values in words, default, and meaning.

    ``kinds``: the choices of its section with this key, default and meaning; empty if the section has one variant.
    """

    name: str
    type: str
    default: Any
    meaning: str
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Schema:
    """The keys and sections allowed below the section ``root``.

    Attributes:
        name: name of the root in messages.
        other_names: names in other programs, some with their section -> key.
        other_values: such a name -> its value ("*" = any other) -> the equivalent here, one override or several
            separated by blanks; "" = none.
        other_meanings: such a name -> the difference of its values.
        command: the command that lists the keys; "" = messages list them.
        include: whether files may include other files.
    """

    root: Variant
    name: str = ""
    other_names: Mapping[str, str] = field(default_factory=dict)
    other_values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    other_meanings: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    include: bool = False
    _variants: dict[KeyPath, tuple[Variant, ...]] = field(default_factory=dict, repr=False)

    def variants(self, path: KeyPath) -> tuple[Variant, ...]:
        """Return the possible sections at `path`; empty for a value or an unknown path."""
        if path not in self._variants:
            self._variants[path] = tuple(self._find_variants(path))
        return self._variants[path]

    def _find_variants(self, path: KeyPath) -> Iterator[Variant]:
        if not path:
            yield self.root
        elif isinstance(path[-1], int):
            for parent in self.variants(path[:-2]) if len(path) > 1 else ():
                yield from (
                    _sections_of(fields(parent)[path[-2]].annotation, items=True) if path[-2] in fields(parent) else ()
                )
        elif isinstance(path[-1], str):
            for parent in self.variants(path[:-1]):
                if (declared := fields(parent).get(path[-1])) is not None:
                    yield from _sections_of(declared.annotation)
                    yield from (kind for item in declared.metadata if isinstance(item, Also) for kind in item.kinds)

    def is_known(self, path: KeyPath) -> bool:
        return any(path[-1] in fields(parent) for parent in self.variants(path[:-1]))

    def field(self, path: KeyPath) -> FieldInfo | None:
        """Return the declaration at `path`, in the first variant that has it."""
        declared = (fields(parent).get(path[-1]) for parent in self.variants(path[:-1])) if path else ()
        return next((field_info for field_info in declared if field_info is not None), None)

    def chooser(self, path: KeyPath) -> str:
        """Return the discriminator of a section (`name` of a task, `kind` of an advantage); "" = none."""
        return next((variant.chooser for variant in self.variants(path)), "")

    def plain_key(self, path: KeyPath) -> str:
        """Return the key that a plain value for the section at `path` sets: its chooser, or its main key."""
        return self.chooser(path) or next((variant.main_key for variant in self.variants(path) if variant.main_key), "")

    def takes_list(self, path: KeyPath) -> bool:
        field = self.field(path)
        return field is not None and get_origin(field.annotation) is tuple

    def choices(self, path: KeyPath) -> dict[str, Variant]:
        """Return the choices of a section by name, if the schema enumerates them: `clip`, `dgpo`, ..."""
        key = self.chooser(path)
        listed = {}
        for variant in self.variants(path):
            field_info = variant.model_fields.get(key)
            if field_info is not None and get_origin(field_info.annotation) is Literal:
                listed.update(dict.fromkeys(get_args(field_info.annotation), variant))
        return listed

    def is_choice(self, path: KeyPath) -> bool:
        """Return whether the schema enumerates a section's variants by name: a task or an advantage, not a method."""
        return 1 < len(self.variants(path)) == len(self.choices(path))

    def chosen(self, path: KeyPath, values: Any) -> Variant | None:
        """Return the variant chosen by the `values` of a section; without a choice, the default's."""
        variants = self.variants(path)
        if len(variants) < 2:
            return variants[0] if variants else None
        tag = values.get(self.chooser(path)) if isinstance(values, dict) else None
        if not isinstance(tag, str):
            return type(self.default(path))
        listed = self.choices(path)
        return listed.get(tag) or next((variant for variant in variants if variant not in listed.values()), None)

    def canonical(self, path: KeyPath, value: Any) -> Any:
        """Return the value of a key with the canonical spelling of a choice."""
        section = path[:-1]
        is_choice = isinstance(value, str) and path[-1] == self.chooser(section)
        return self.variants(section)[0].canonical(value) if is_choice else value

    def default(self, path: KeyPath) -> Any:
        field_info = self.field(path)
        assert field_info is not None
        return field_info.get_default(call_default_factory=True)

    def key_of(self, path: KeyPath) -> KeyPath:
        """Return `path`, or the key whose value contains it."""
        starts = (path[:length] for length in range(1, len(path)))
        return next((start for start in starts if self.is_known(start) and not self.variants(start)), path)

    @cached_property
    def section_names(self) -> tuple[str, ...]:
        """The dotted name of every section: `method`, `method.advantage`, ..."""
        return tuple(dict.fromkeys(".".join(path) for path in self._sections_below(())))

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """All keys, in the order of the schema; a key of several kinds has one entry per meaning."""
        return tuple(self._keys_below(()))

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key.name for key in self.keys))

    def search(self, text: str) -> list[Key]:
        """Return the keys of section ``text``, else those with that name or component, else those that mention it."""
        below = [key for key in self.keys if key.name.startswith(f"{text}.")]
        named = below or [key for key in self.keys if f".{text}." in f".{key.name}."]
        alias, word = self.other_names.get(normalize_name(text)), text.lower()
        return named or [
            key for key in self.keys if key.name == alias or word in key.name or word in key.meaning.lower()
        ]

    def equivalent(self, name: str, value: Any) -> str | None:
        """Return the overrides equivalent to `name=value` of another program; "" = none, None = unknown."""
        values = self.other_values.get(name, {})
        written = str(value).lower() if isinstance(value, bool) else value if isinstance(value, str) else "*"
        return values.get(written, values.get("*"))

    def suggest(self, path: Sequence[str], chosen: Variant | None = None) -> str | None:
        """Return the most likely key for the unknown `path`.

        In this order: the same name deeper in the section, a similar name in the section, another program's name (first
        if no section is named), the same name anywhere, and the nearest dotted name. `kl_beta` matches `kl.beta`.

        Args:
            chosen: the section's chosen variant, whose keys are preferred.
        """
        path = tuple(path)
        other = self.other_names.get(normalize_name(path[-1]))
        if len(path) == 1 and other:
            return other
        if in_section := self.other_names.get(normalize_name(".".join(path[-2:]))):
            return in_section
        # Sections that accept a plain value.
        plain = [
            name for name in self.section_names if any(kind.main_key for kind in self.variants(tuple(name.split("."))))
        ]
        names = (*plain, *self.key_names)
        ends = (".".join(path[start:]) for start in range(1, len(path) - 1))
        if dotted_end := next((end for end in ends if end in names), None):
            return dotted_end
        same_name = [name for name in names if f".{name}".replace(".", "_").endswith(f"_{path[-1]}".replace(".", "_"))]
        if len(path) > 1:
            if inside := [name for name in same_name if name.startswith(f"{path[0]}.")]:
                return " or ".join(inside)
            siblings = [name for variant in self.variants(path[:-1]) for name in fields(variant)]
            if close := nearest(path[-1], fields(chosen) if chosen else siblings) or nearest(path[-1], siblings):
                return ".".join((*path[:-1], close))
            if other:
                return other
        if same_name:
            return " or ".join(same_name)
        top = fields(self.root)
        if len(path) == 1:
            return nearest(path[0], top)
        return nearest(".".join(path), names, cutoff=0.8)

    def _sections_below(self, path: KeyPath) -> Iterator[KeyPath]:
        for variant in self.variants(path):
            for name in fields(variant):
                if self.variants((*path, name)):
                    yield (*path, name)
                    yield from self._sections_below((*path, name))

    def _keys_below(self, path: KeyPath) -> Iterator[Key]:
        chooser, listed, variants = self.chooser(path), self.choices(path), self.variants(path)
        if len(variants) > 1 and len(listed) == len(variants):
            yield self._choice_key((*path, chooser), listed)
        keys: dict[tuple[Any, ...], Key] = {}
        for variant in variants:
            label = (
                next((tag for tag, other in listed.items() if other is variant), None) if len(variants) > 1 else None
            )
            for name, declared in fields(variant).items():
                below = (*path, name)
                if self.variants(below):
                    yield from keys.values()
                    keys.clear()
                    yield from self._keys_below(below)
                    continue
                if name == chooser and len(variants) > 1 and label is not None:
                    continue
                default = declared.get_default(call_default_factory=True)
                key = Key(".".join(below), describe_field(declared), default, declared.description or "")
                same = (key.name, key.type, repr(key.default), key.meaning)
                kinds = (*(keys[same].kinds if same in keys else ()), *([label] if label else []))
                keys[same] = Key(key.name, key.type, key.default, key.meaning, kinds)
        yield from keys.values()

    def _choice_key(self, path: KeyPath, listed: dict[str, Variant]) -> Key:
        """Return the discriminator as a key with the meanings of all variants."""
        meanings = [variant.model_fields[path[-1]].description or "" for variant in listed.values()]
        default = getattr(self.default(path[:-1]), path[-1])
        return Key(".".join(path), f"one of {', '.join(listed)}", default, " ".join(meanings))


@cache
def schema_of(root: Variant, name: str = "") -> Schema:
    return Schema(root, name)


def normalize_name(name: str) -> str:
    return name.lstrip("-").lower().replace("-", "_")


def fields(section: Variant) -> dict[str, FieldInfo]:
    return {declared.alias or name: declared for name, declared in section.model_fields.items()}


def describe_field(declared: FieldInfo) -> str:
    return declared.title or describe_type(declared.annotation, tuple(declared.metadata))


def describe_type(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Return the allowed values of a bare annotation, as :func:`describe_field`."""
    if get_origin(annotation) is Annotated:
        base, *more = get_args(annotation)
        return describe_type(base, (*metadata, *more))
    title = next((item.title for item in metadata if isinstance(item, FieldInfo) and item.title), None)
    arguments, origin = get_args(annotation), get_origin(annotation)
    if title is not None:
        return title
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        kinds = [describe_type(kind, metadata) for kind in arguments if kind is not type(None)]
        return ", or ".join((["null"] if type(None) in arguments else []) + kinds)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            least = "at least one value" if any(getattr(item, "min_length", 0) for item in metadata) else "values"
            return f"a list of {least}, each {describe_type(arguments[0])}"
        return f"a list of {len(arguments)} values, each {describe_type(arguments[0])}"
    if origin is dict:
        return f"a mapping from {describe_type(arguments[0])}, to {describe_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        keys = ", ".join(declared.alias or name for name, declared in annotation.model_fields.items())
        return annotation.model_config.get("title") or f"a mapping with the keys {keys}"
    if annotation is str:
        return (
            "text, not empty, on one line" if any(isinstance(item, StringConstraints) for item in metadata) else "text"
        )
    word = {int: "a whole number", float: "a number", bool: "true or false"}.get(annotation, "any value")
    bounds = list(_bounds(metadata))
    return ", ".join([word, " and ".join(bounds)]) if bounds else word


def allows_text(annotation: Any) -> bool:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return allows_text(arguments[0])
    if origin is Literal:
        return any(isinstance(value, str) for value in arguments)
    if origin in (Union, types.UnionType):
        return any(map(allows_text, arguments))
    return annotation is str


def _bounds(metadata: Iterable[Any]) -> Iterable[str]:
    words = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from _bounds(item.metadata)
        for name, word in words:
            if hasattr(item, name):
                yield f"{word} {_format_bound(getattr(item, name))}"


def _format_bound(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)


def _sections_of(annotation: Any, *, items: bool = False) -> tuple[Variant, ...]:
    """Return the sections that a value may be; ``items``: those in a list."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _sections_of(arguments[0], items=items)
    if origin in (Union, types.UnionType):
        return tuple(section for argument in arguments for section in _sections_of(argument, items=items))
    if items:
        return _sections_of(arguments[0]) if origin is tuple else ()
    if not (isinstance(annotation, type) and issubclass(annotation, Section)):
        return ()
    return (
        tuple(annotation.kinds.values()) if issubclass(annotation, Choice) and annotation.is_family() else (annotation,)
    )
