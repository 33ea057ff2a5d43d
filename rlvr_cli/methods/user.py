"""A method in a user file: its components and presets.

Its classes belong to one load of a configuration: :func:`build_method_type` builds the section ``method`` with them,
and none is registered.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field, ValidationInfo, create_model

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.keys import schema_of
from rlvr_cli.core.layers import Layer, Merged, validate
from rlvr_cli.core.lazy import torch
from rlvr_cli.core.section import Also, Choice
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.user_code import PREFIX, UserFile, describe_value, function_line, guard, load_classes, load_module
from rlvr_cli.methods.aggregation import Aggregation
from rlvr_cli.methods.base import Advantage, Part, PolicyLoss, Shaping
from rlvr_cli.methods.lopti import Passes
from rlvr_cli.methods.method import Method, make_shapings_type
from rlvr_cli.methods.names import (
    ALIASES,
    BUILT_IN,
    METHODS,
    MODIFIER_PRESETS,
    MethodTables,
    parse_method_name,
    shaping_kinds,
)
from rlvr_cli.methods.preset import MethodPreset, Modifier, Paper, Preset

# Hint for messages.
EXAMPLE = "`rlvr new method NAME` writes an example"
# Section -> family of its kinds.
FAMILIES: Mapping[str, type[Choice]] = {
    "advantage": Advantage,
    "policy_loss": PolicyLoss,
    "aggregation": Aggregation,
    "passes": Passes,
}
# The computing methods of all components; first those with results per token.
_PER_TOKEN, _PER_ROW = ("weight", "factor", "coefficients", "selected"), ("advantages", "shape")
COMPUTING = frozenset((*_PER_TOKEN, *_PER_ROW, "returns", "statistics", "bounds", "count", "threshold"))
_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,39}$")


@dataclass(frozen=True, eq=False)
class UserMethod:
    """A file's method or modifier.

    ``components``: the classes of the file, each with its section: `policy_loss`, `shaping.mine`.
    """

    file: UserFile
    preset: Preset
    components: tuple[tuple[str, type[Part]], ...]


def load_method(file: UserFile) -> UserMethod:
    """Import the file and return its method. Raises UserError, each problem with file and line."""
    classes = [kind for kind in load_classes(file) if issubclass(kind, Part)]
    components = [(_section(kind), kind) for kind in classes if _has_name(kind)]
    if problems := list(_part_problems(file, classes)):
        raise UserError(problems)
    for kind in classes:
        for name in COMPUTING & vars(kind).keys():
            setattr(kind, name, _wrap_checked(vars(kind)[name], name, file))
    method = UserMethod(file, _load_preset(file, components), tuple(components))
    if problems := list(_value_problems(method)):
        raise UserError(problems)
    return method


def _has_name(kind: type[Part]) -> bool:
    return ("key" if issubclass(kind, Shaping) else "kind") in vars(kind).get("__annotations__", {})


def _section(kind: type[Part]) -> str:
    if issubclass(kind, Shaping):
        return f"shaping.{kind.key}"
    return next((section for section, family in FAMILIES.items() if issubclass(kind, family)), "")


def _name_of(kind: type[Part]) -> str:
    return kind.key if issubclass(kind, Shaping) else str(kind.model_fields["kind"].default)


@functools.lru_cache(maxsize=64)
def tables_of(methods: tuple[UserMethod, ...]) -> MethodTables:
    """Return the names of methods with those of the files."""
    presets = {method.preset.name: method.preset for method in methods}
    bases = {name: preset for name, preset in presets.items() if isinstance(preset, MethodPreset)}
    return MethodTables(
        {**BUILT_IN.methods, **bases},
        {**BUILT_IN.modifiers, **{name: preset for name, preset in presets.items() if isinstance(preset, Modifier)}},
    )


@functools.lru_cache(maxsize=64)
def build_method_type(methods: tuple[UserMethod, ...]) -> type[Method]:
    """Build the section ``method`` with the files' names and classes.

    It has the further key `files`, the references of the files that the method uses.
    """
    if not methods:
        return Method
    components = [pair for method in methods for pair in method.components]

    def files(_: Any, info: ValidationInfo) -> tuple[str, ...]:
        sections = dict(info.data)
        chosen = {type(value) for value in sections.values()}
        chosen |= {type(shaping) for _, shaping in sections.get("shaping", ()) if shaping.is_on}
        name = sections.get("name")
        names = () if name is None else str(parse_method_name(name, tables_of(methods))).split("+")
        needed = (
            method
            for method in methods
            if method.preset.name in names or chosen & {kind for _, kind in method.components}
        )
        return tuple(method.file.reference for method in needed)

    key = (Annotated[tuple[str, ...], BeforeValidator(files)], Field((), validate_default=True, description=_FILES))
    return _extend(components, tables_of(methods), key)


_FILES = "The user files of the method, each with the beginning of its SHA-256."


def _extend(components: Sequence[tuple[str, type[Part]]], tables: MethodTables | None, files: Any) -> type[Method]:
    """Build a section ``method`` with these components besides the built-in ones, and the key `files`."""
    fields: dict[str, Any] = {"files": files}
    for section, family in FAMILIES.items():
        if also := tuple(kind for other, kind in components if other == section):
            declared = Method.model_fields[section]
            field = Field(default=declared.default, description=declared.description)
            fields[section] = (Annotated[cast("Any", family), Also(cast("Any", also))], field)
    if shapings := [kind for _, kind in components if issubclass(kind, Shaping)]:
        every = make_shapings_type(sorted([*shaping_kinds(), *shapings], key=lambda kind: kind.order))
        description = Method.model_fields["shaping"].description
        fields["shaping"] = (every, Field(default_factory=every, description=description))
    tabled = type("Tabled", (), {"__annotations__": {"tables": ClassVar[Any]}, "tables": tables})
    return create_model("Method", __base__=(tabled, Method), __doc__=Method.__doc__, **fields)


def _part_problems(file: UserFile, classes: Sequence[type[Part]]) -> Iterator[str]:
    for kind in classes:
        where, is_shaping = f"{file.location(kind.__name__)}: {kind.__name__}", issubclass(kind, Shaping)
        key = "key" if is_shaping else "kind"
        if not _has_name(kind):
            if not any(kind in other.__mro__[1:] for other in classes):
                write = "`key: ClassVar[str] = ...`" if is_shaping else "`kind: Literal[...] = Field(...)`"
                yield f"{where} has no {key}. Add {write} ({EXAMPLE})"
            continue
        if not _section(kind):
            yield f"{where} must inherit from a component of rlvr_cli.methods, as PolicyLoss or Advantage ({EXAMPLE})"
            continue
        name, taken = _name_of(kind), Shaping.registered if is_shaping else FAMILIES[_section(kind)].kinds
        if not _NAME.match(name.replace("_", "-")):
            yield f"{where}: the name must be lower-case letters, digits, _ and -; got {name!r}"
        if name in taken:
            yield f'{where}: {key} "{name}" is taken by {taken[name].__name__}. Choose another name'
        if lacking := sorted(getattr(kind, "__abstractmethods__", ())):
            yield f"{where} lacks the method {', '.join(lacking)} ({EXAMPLE})"
        if issubclass(kind, Shaping) and kind.main_key not in kind.model_fields:
            yield f"{where}: main_key must be the parameter that switches it on ({EXAMPLE})"
        for parameter, field in kind.model_fields.items():
            if field.is_required():
                yield f"{where}: {parameter} has no default. Write `{parameter}: ... = Field(DEFAULT, ...)`"


def _load_preset(file: UserFile, classes: Sequence[tuple[str, type[Part]]]) -> Preset:
    """Return the file's preset: its PRESETS, else its one class in place of GRPO's. Raises UserError."""
    module = load_module(file)
    written, where = vars(module).get("PRESETS"), file.location("PRESETS")
    if written is None:
        if len(classes) != 1:
            has = f"several classes, {', '.join(kind.__name__ for _, kind in classes)}, and no PRESETS"
            raise UserError(
                f"{where}: has {has if classes else 'no method'}. A file has one class that inherits from PolicyLoss, "
                f"Advantage or another component of rlvr_cli.methods, or PRESETS that name all its classes ({EXAMPLE})."
            )
        written = _default_preset(file, *classes[0])
    presets = list(written) if isinstance(written, (tuple, list)) else [written]
    preset: Any = presets[0] if len(presets) == 1 else None
    if not isinstance(preset, (MethodPreset, Modifier)) or getattr(preset, "imitates", False):
        raise UserError(f"{where}: PRESETS must hold one MethodPreset or Modifier of a policy gradient ({EXAMPLE}).")
    if not _NAME.match(str(preset.name)) or preset.name in (*ALIASES, *METHODS, *MODIFIER_PRESETS):
        raise UserError(
            f"{where}: the name must be lower-case letters, digits and -, and not that of a built-in method; got "
            f"{preset.name!r}."
        )
    if isinstance(preset, MethodPreset):
        if preset.inherits and preset.inherits not in METHODS:
            hint = did_you_mean(preset.inherits, METHODS)
            raise UserError(f"{where}: inherits={preset.inherits!r}: unknown method.{hint}")
        preset = preset.with_inherited(METHODS)
    return cast("Preset", dataclasses.replace(preset, module=module.__name__, file=str(file.path), aliases=()))


def _default_preset(file: UserFile, section: str, kind: type[Part]) -> MethodPreset:
    name = file.path.name
    if section not in FAMILIES:
        raise UserError(
            f"{file.location(kind.__name__)}: {kind.__name__} modifies a method by an unknown amount. Write "
            f'`PRESETS = (Modifier("{_name_of(kind).replace("_", "-")}", title=..., summary=..., paper=..., '
            f'sets={{"{section}.{kind.main_key}": (VALUE, "why")}}),)` ({EXAMPLE}).'
        )
    summary = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0] if "__doc__" in vars(kind) else ""
    return MethodPreset(
        _name_of(kind).replace("_", "-"),
        title=re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__),
        summary=" ".join(summary.split()) or f"{kind.__name__} of {name}, with all else as in grpo.",
        paper=Paper(name, "your file"),
        extra_cost="not stated",
        sets={f"{section}.kind": (_name_of(kind), name)},
        inherits="grpo",
    )


def _value_problems(user_method: UserMethod) -> Iterator[str]:
    """Yield the invalid values of a preset, and the classes of its file that it does not use."""
    file, preset, method_class = user_method.file, user_method.preset, build_method_type((user_method,))
    merged = Merged(schema_of(method_class))
    for layer in (*([METHODS["grpo"]] if isinstance(preset, Modifier) else []), preset):
        merged.add(Layer(layer.label, dict(layer.values), preset=True))
    method, faults = validate(method_class, merged, lambda section, _: section.contradictions())
    yield from (f"{file.location('PRESETS')}: PRESETS: {message}" for _, message in faults)
    for section, kind in () if faults else user_method.components:
        chosen = functools.reduce(getattr, section.split("."), cast("Any", method))
        if not isinstance(chosen, kind) or (isinstance(chosen, Shaping) and not chosen.is_on):
            key, value = ("kind", _name_of(kind)) if section in FAMILIES else (kind.main_key, "what switches it on")
            yield (
                f"{file.location(kind.__name__)}: {kind.__name__} is off in {preset.name}. Set {section}.{key} to "
                f"{value} in PRESETS ({EXAMPLE})"
            )


def _wrap_checked(function: Callable[..., Any], name: str, file: UserFile) -> Callable[..., Any]:
    """Wrap a method so that errors name the file's line and invalid results raise RunError."""
    if inspect.unwrap(function) is not function:
        return function

    @functools.wraps(function)
    def checked(self: Any, first: Any, *arguments: Any, **named: Any) -> Any:
        gradients, called = torch.is_grad_enabled(), f"{name} of {type(self).__name__}"
        try:
            with guard(file, called):
                result = function(self, first, *arguments, **named)
        finally:
            changed = torch.is_grad_enabled() != gradients
            torch.set_grad_enabled(gradients)
        if wrong := "switches torch's gradients on or off" if changed else _result_problem(name, first, result):
            raise RunError(f"{function_line(function, file)}: {called} {wrong}.")
        return result

    return checked


def _result_problem(name: str, first: Any, result: Any) -> str:
    """Return the error message for the result of a method called with ``first``: tokens, a rollout or a mask."""
    if name not in (*_PER_TOKEN, *_PER_ROW) or (mask := getattr(first, "mask", first)) is None:
        return ""
    rows, length = mask.shape
    shapes = [(rows, length)] if name in _PER_TOKEN else [(rows, 1), (rows, length)]
    return shape_problem(result, shapes, (rows, length))


def shape_problem(result: Any, shapes: Sequence[tuple[int, ...]], tokens: tuple[int, ...]) -> str:
    allowed = " or ".join(map(str, shapes))
    if not isinstance(result, torch.Tensor):
        return f"must return a tensor of shape {allowed}; got {describe_value(result)}"
    if tuple(result.shape) not in shapes:
        return f"must return shape {allowed} for tokens of shape {tokens}; got {tuple(result.shape)}"
    return ""


def build_recorded_method(values: Mapping[str, Any], files: Sequence[str]) -> type[Method]:
    """Make the section ``method`` of a recorded run without importing its files.

    Kinds and shapings that are not built in keep their keys as they are; they compute nothing.
    """
    components: list[tuple[str, type[Part]]] = []
    for section, family in FAMILIES.items():
        match values.get(section, {}):
            case {"kind": str(kind)} as keys if kind not in family.kinds:
                components.append((section, _recorded_part(cast("Any", family), keys)))
    shapings = values.get("shaping")
    for key, keys in shapings.items() if isinstance(shapings, dict) else ():
        if key not in Shaping.registered and isinstance(keys, dict):
            components.append((f"shaping.{key}", _recorded_part(Shaping, keys, key=key, is_on=True)))
    recorded = (Annotated[tuple[str, ...], BeforeValidator(tuple)], Field(tuple(files), description=_FILES))
    return _extend(components, None, recorded)


def _recorded_part(family: type[Part], values: Mapping[str, Any], **attributes: Any) -> type[Part]:
    def computes(self: Any, *_: Any, **__: Any) -> Any:
        raise UserError(
            f"{getattr(self, 'kind', type(self).__name__)}: its formula is in a user file, which commands that "
            "read a run do not import."
        )

    attributes |= {"recorded": True, **{name: computes for name in COMPUTING if hasattr(family, name)}}
    attributes |= {"names": property(computes)} if family is Passes else {}
    fields: dict[str, Any] = {key: (Any, None) for key in values if key not in family.model_fields}
    if "kind" in values:
        fields["kind"] = (Literal[values["kind"]], values["kind"])
    bases, create = (type("Recorded", (), attributes), family), cast("Any", create_model)
    return cast("type[Part]", create("Recorded", __base__=bases, __module__=f"{PREFIX}recorded", **fields))
