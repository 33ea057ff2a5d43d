"""Merge layers of values (later ones win), with the origin of each value and problem."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from rlvr_cli.core.keys import Schema
from rlvr_cli.core.messages import convert_errors, drop_odd_keys, follow_single_keys, iter_set_paths, value_at
from rlvr_cli.core.section import Contradiction, Section
from rlvr_cli.core.text import nearest, redact_secrets
from rlvr_cli.core.yaml import KeyPath, YamlProblem, dump, parse

SHOWN = 80
S = TypeVar("S", bound=Section)
SetByUser = Callable[[KeyPath], bool]


@dataclass(frozen=True)
class Origin:
    """The origin of a value: a file and line, an option, an override, or a preset (not set by the user)."""

    label: str
    line: int | None = None
    preset: bool = False

    def __str__(self) -> str:
        return self.label if self.line is None else f"{self.label}:{self.line}"


@dataclass
class Layer:
    """Values of one source as nested mappings, with the line of each path (empty for options)."""

    label: str
    data: dict[Any, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    preset: bool = False

    def origin(self, path: KeyPath) -> Origin:
        """Return the origin of `path` in this layer: the line of its longest prefix with one."""
        line = next((line for n in range(len(path), -1, -1) if (line := self.lines.get(path[:n])) is not None), None)
        return Origin(self.label, line, self.preset)


@dataclass
class Merged:
    """The merged layers: nested data, and the layer that set each section and key.

    ``presets``: the lowest layers, of the last chosen names, restored when a section gets another name.
    """

    schema: Schema
    presets: tuple[Layer, ...] = ()
    data: dict[Any, Any] = field(default_factory=dict)
    layers: dict[KeyPath, Layer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for layer in self.presets:
            self.add(layer)

    def origin(self, path: KeyPath) -> Origin | None:
        """Return the origin of `path` (a section, a key, or inside a key's value); None for a default."""
        layer = self.layers.get(self.schema.key_of(path))
        return None if layer is None else layer.origin(path)

    def set_by_user(self, path: KeyPath) -> bool:
        """Return whether the user set the key at `path`, not a preset or a default."""
        layer = self.layers.get(path)
        return layer is not None and not layer.preset

    def format_origins(self, paths: Iterable[KeyPath]) -> str:
        """Return the distinct origins of `paths` as text: `a.yaml:3,7, override eval.samples=4`.

        Presets are omitted if there is another origin. Values of a section's preset originate where the user set the
        section's name.
        """
        origins = [origin for origin in map(self._user_origin, paths) if origin is not None]
        by_user = [origin for origin in origins if not origin.preset]
        lines: dict[str, list[int]] = {}
        for origin in by_user or origins:
            line_numbers = lines.setdefault(origin.label, [])
            if origin.line is not None and origin.line not in line_numbers:
                line_numbers.append(origin.line)
        return ", ".join(
            f"{label}:{','.join(map(str, sorted(numbers)))}" if numbers else label for label, numbers in lines.items()
        )

    def _user_origin(self, path: KeyPath) -> Origin | None:
        origin, name = self.origin(path), (path[0], self.schema.chooser(path[:1]))
        return self.origin(name) if (origin is None or origin.preset) and self.set_by_user(name) else origin

    def add(self, layer: Layer) -> None:
        """Merge `layer` over the others: sections at any depth; the value of a key is replaced.

        A plain value for a section chooses its variant (`advantage: rloo`) or sets its main key (`reweight: 0.3`).
        Another choice drops the lower layers' values for the previous one.
        """
        self._merge((), self.data, layer.data, layer)

    def _merge(self, path: KeyPath, below: dict[Any, Any], values: dict[Any, Any], layer: Layer) -> None:
        chooser = self.schema.chooser(path)
        chosen = self.schema.canonical((*path, chooser), values[chooser]) if chooser and chooser in values else None
        if chooser and chooser in values and chosen != below.get(chooser, chosen):
            self._reset_choice(path, below)
        for key, value in values.items():
            key_path = (*path, key)
            self.layers[key_path] = layer
            if not self.schema.variants(key_path):
                unknown = isinstance(value, dict) and not self.schema.is_known(key_path)
                if unknown and isinstance(below.setdefault(key, {}), dict):
                    # One message for each key of another program's section.
                    self._merge(key_path, below[key], value, layer)
                else:
                    below[key] = self.schema.canonical(key_path, value)
                continue
            plain = self.schema.plain_key(key_path)
            refused = dict if plain and self.schema.takes_list((*key_path, plain)) else (dict, list)
            if plain and not isinstance(value, refused) and (value is not None or not self.schema.chooser(key_path)):
                value = {plain: value}
            if value is None:
                below.setdefault(key, {})
            elif not isinstance(value, dict):
                self._drop_origins(key_path)
                below[key] = value
            else:
                if not isinstance(below.get(key), dict):
                    self._drop_origins(key_path)
                    below[key] = {}
                self._merge(key_path, below[key], value, layer)

    def _reset_choice(self, path: KeyPath, below: dict[Any, Any]) -> None:
        """Drop the values of the previous choice; restore the presets of a top-level section."""
        dropped = self.schema.variants(path)[0].reset_with_choice
        for key in dropped or ():
            below.pop(key, None)
            self.layers.pop((*path, key), None)
        if dropped is None:
            self._drop_origins(path)
            below.clear()
            for preset in self.presets if len(path) == 1 else ():
                self._merge(path, below, preset.data.get(path[0], {}), preset)

    def _drop_origins(self, path: KeyPath) -> None:
        for key_path in [
            key_path for key_path in self.layers if len(key_path) > len(path) and key_path[: len(path)] == path
        ]:
            del self.layers[key_path]


class OptionOverride(str):
    """The override set by a command-line option: `eval.samples=4` for `--samples 4`.

    ``typed``: the option as typed, for messages. ``problem``: why it is invalid on this command line; "" = valid.
    """

    typed: str
    problem: str

    def __new__(cls, text: str, typed: str = "", problem: str = "") -> OptionOverride:
        override = super().__new__(cls, text)
        override.typed, override.problem = typed, problem
        return override


def as_typed(text: str) -> str:
    """Return an override as typed, shortened and without secrets."""
    line = redact_secrets(" ".join((text.typed if isinstance(text, OptionOverride) else text).split()))
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."


def override_label(text: str) -> str:
    return as_typed(text) if isinstance(text, OptionOverride) else f"override {as_typed(text)}"


def parse_override(schema: Schema, text: str) -> Layer:
    """Parse an override such as `optimizer.lr=1e-6` into a layer. Raises ValueError with the user's message."""
    name, equals, written = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ValueError("must be `section.key=value`, as in optimizer.lr=1e-6")
    if isinstance(text, OptionOverride) and text.problem:
        raise ValueError(text.problem)
    path = tuple(name.split("."))
    if not all(path):
        raise ValueError(f"`{name}` has an empty component between its dots; must be `section.key=value`")
    for length in range(1, len(path)):
        if schema.is_known(path[:length]) and not schema.variants(path[:length]):
            key = ".".join(path[:length])
            raise ValueError(f"`{key}` has no keys below it. Set `{key}=...`")
    try:
        # `{{ prompt }}` is a template; as YAML it would be a mapping whose key is a mapping, which is never valid.
        value: Any = written if written.lstrip().startswith("{{") else parse(written).data
    except YamlProblem as problem:
        raise ValueError(f"the value `{written[:SHOWN]}`: {problem.message}") from None
    if value is None and schema.chooser(path):
        value = {schema.chooser(path): None}
    for name_part in reversed(path):
        value = {name_part: value}
    return Layer(override_label(text), dict(value))


def format_override(key: str, value: Any) -> str:
    """Return `key=value` with the value as one-line YAML, which parses to the same value."""
    if isinstance(value, float) and abs(value) < float("inf"):
        return f"{key}={value!r}"
    return f"{key}={dump([value], flow=True)[1:-1]}"


def order_overrides(schema: Schema, layers: list[Layer]) -> list[Layer]:
    """Return the overrides of one command line in merge order.

    Choices of a name or kind come first, since they drop earlier parameters; others stay in order.
    """

    def rank(layer: Layer) -> int:
        """Return the depth of a choice, and a larger number for other overrides."""
        path = follow_single_keys((), layer.data)
        if path[-1] == schema.chooser(path[:-1]):
            return len(path)
        return len(path) + 1 if schema.chooser(path) and not isinstance(value_at(layer.data, path), dict) else 1000

    return sorted(layers, key=rank)


def validate(
    root: type[S], merged: Merged, rules: Callable[[S, SetByUser], Iterable[Contradiction]]
) -> tuple[S, list[tuple[str, str]]]:
    """Validate merged layers as a section.

    Args:
        rules: returns conflicts between valid values of different keys.
    Returns:
        The section and all problems as (origins of the values, message). Invalid values are replaced by their
        defaults so that the rules check the rest.
    """
    schema, data = merged.schema, copy.deepcopy(merged.data)
    problems: list[tuple[str, str]] = []
    invalid: set[KeyPath] = set()
    for fault in drop_odd_keys(schema, data):
        problems.append((merged.format_origins([fault.value_path]), str(fault)))
    while True:
        _add_default_kinds(schema, data)
        try:
            section = root.model_validate(data)
            break
        except ValidationError as error:
            for fault in convert_errors(schema, data, error):
                problems.append((merged.format_origins([fault.value_path]), str(fault)))
                invalid.add(fault.path)
                _drop(schema, data, fault.path)
    for contradiction in rules(section, merged.set_by_user):
        paths = [tuple(key.split(".")) for key in contradiction.keys]
        if not any(_is_invalid(schema, path, invalid) for path in paths):
            problems.append((merged.format_origins(paths), contradiction.message))
    return section, problems


def _add_default_kinds(schema: Schema, data: dict[Any, Any]) -> None:
    """Write the default kind into sections without one, for pydantic's discriminator."""
    for path in list(iter_set_paths(schema, data)):
        values = value_at(data, path)
        if schema.is_choice(path) and isinstance(values, dict):
            chooser = schema.chooser(path)
            values.setdefault(chooser, getattr(schema.default(path), chooser))


def _is_invalid(schema: Schema, path: KeyPath, invalid: set[KeyPath]) -> bool:
    return any(
        other == path[: len(other)]
        or (other[-1] == schema.chooser(other[:-1]) and other[:-1] == path[: len(other) - 1])
        for other in invalid
    )


def _drop(schema: Schema, data: Any, path: KeyPath) -> None:
    """Drop the value at `path`; for a choice without a near match, drop its parameters too."""
    section = path[:-1]
    values = value_at(data, section)
    if path[-1] == schema.chooser(section) and schema.is_choice(section):
        chooser = path[-1]
        guess = nearest(values[chooser], schema.choices(section)) if isinstance(values.get(chooser), str) else None
        if guess and guess != values[chooser]:
            values[chooser] = guess
        else:
            values.clear()
        return
    values.pop(path[-1], None)  # an unknown section has a fault for each of its keys
