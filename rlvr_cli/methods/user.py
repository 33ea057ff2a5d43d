"""A method in a Python file of the user's: the parts of a method that it defines, and the preset that names them.

Its classes are values of one load of a configuration: :func:`method_type` makes the section ``method`` that knows them,
and nothing else in the process does.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field, ValidationInfo, create_model

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.keys import schema_of
from rlvr_cli.core.layers import Layer, Merged, validate
from rlvr_cli.core.lazy import torch
from rlvr_cli.core.section import Also, Choice
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.user_code import PREFIX, UserFile, class_lines, guarded, load_module, shown, value_text
from rlvr_cli.methods.aggregation import Aggregation
from rlvr_cli.methods.base import Advantage, Part, PolicyLoss, Shaping, UserPart
from rlvr_cli.methods.lopti import Passes
from rlvr_cli.methods.method import Method, shapings_type
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

PAGE = "docs/methods/own.md"
# The families by the section in which one of their kinds stands.
FAMILIES: Mapping[str, type[Choice]] = {
    "advantage": Advantage,
    "policy_loss": PolicyLoss,
    "aggregation": Aggregation,
    "passes": Passes,
}
# What computes, of any part; and whose results have the shape of the tokens.
COMPUTING = (
    *("advantages", "returns", "statistics", "weight", "bounds", "shape", "factor"),
    *("count", "coefficients", "selected", "threshold"),
)
_PER_TOKEN, _PER_ROW = ("weight", "factor", "coefficients", "selected"), ("advantages", "shape")
_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,39}$")


@dataclass(frozen=True, eq=False)
class UserMethod:
    """A file's method or modifier.

    Attributes:
        parts: the classes that the file defines, each with its section: `policy_loss`, `shaping.mine`.
    """

    file: UserFile
    preset: Preset
    parts: tuple[tuple[str, type[Part]], ...]

    def clashes(self, other: UserMethod) -> bool:
        """Whether both have the same name, or kinds of the same name in one section."""
        return self.preset.name == other.preset.name or bool(self._kinds() & other._kinds())

    def _kinds(self) -> set[tuple[str, str]]:
        return {(section, _name_of(part)) for section, part in self.parts}


_LOADED: dict[tuple[str, str], UserMethod] = {}


def is_loaded(file: UserFile) -> bool:
    """Whether this process has imported the file."""
    return (str(file.path), file.digest) in _LOADED


def load_method(file: UserFile, seconds: float | None = None) -> UserMethod:
    """Import the file and return its method. Raises UserError, each problem with file and line."""
    key = (str(file.path), file.digest)
    if key not in _LOADED:
        module = load_module(file, seconds)
        found = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Part)]
        own = list(dict.fromkeys(kind for kind in found if kind.__module__ == module.__name__))
        lines = class_lines(file.text)
        parts = [(_section(kind), kind) for kind in own if _has_name(kind)]
        _check_parts(file, own, parts, lines)
        preset = _preset(file, module, parts, lines)
        one = UserMethod(file, preset, tuple((section, _guarded(part, file)) for section, part in parts))
        _check_values(one, lines)
        _LOADED[key] = one
    return _LOADED[key]


def _has_name(kind: type[Part]) -> bool:
    name = "key" if issubclass(kind, Shaping) else "kind"
    return name in vars(kind).get("__annotations__", {})


def _section(kind: type[Part]) -> str:
    if issubclass(kind, Shaping):
        return f"shaping.{kind.key}"
    return next((section for section, family in FAMILIES.items() if issubclass(kind, family)), "")


def _name_of(part: type[Part]) -> str:
    return part.key if issubclass(part, Shaping) else str(part.model_fields["kind"].default)


@functools.lru_cache(maxsize=64)
def tables_of(methods: tuple[UserMethod, ...]) -> MethodTables:
    """Return the names of methods with those of the files."""
    presets = {one.preset.name: one.preset for one in methods}
    bases = {name: one for name, one in presets.items() if isinstance(one, MethodPreset)}
    return MethodTables(
        {**BUILT_IN.methods, **bases},
        {**BUILT_IN.modifiers, **{name: one for name, one in presets.items() if isinstance(one, Modifier)}},
    )


@functools.lru_cache(maxsize=64)
def method_type(methods: tuple[UserMethod, ...]) -> type[Method]:
    """Make the section ``method`` that also knows the files' names and classes.

    It has a key more: `files`, the references of the files without which the method would not be what it is.
    """
    if not methods:
        return Method
    parts = [pair for one in methods for pair in one.parts]

    def files(_: Any, info: ValidationInfo) -> tuple[str, ...]:
        sections = dict(info.data)
        chosen = {type(value) for value in sections.values()}
        chosen |= {type(one) for _, one in sections.get("shaping", ()) if one.is_on}
        name = sections.get("name")
        names = () if name is None else ((said := parse_method_name(name, tables_of(methods))).base, *said.modifiers)
        needed = (one for one in methods if one.preset.name in names or chosen & {kind for _, kind in one.parts})
        return tuple(one.file.reference for one in needed)

    return extended_method(
        {section: tuple(kind for where, kind in parts if where == section) for section in FAMILIES},
        [kind for _, kind in parts if issubclass(kind, Shaping)],
        tables_of(methods),
        (Annotated[tuple[str, ...], BeforeValidator(files)], Field((), validate_default=True, description=FILES)),
    )


FILES = "The user files of the method, each with the beginning of its SHA-256."


def extended_method(
    kinds: Mapping[str, tuple[type[Part], ...]],
    shapings: Sequence[type[Shaping]],
    tables: MethodTables | None,
    files: Any,
) -> type[Method]:
    """Make a section ``method`` with kinds and shapings besides the built-in ones, and the key `files`."""
    fields: dict[str, Any] = {}
    for section, also in kinds.items():
        field = Method.model_fields[section]
        family: Any = FAMILIES[section]
        if also:
            fields[section] = (
                Annotated[family, Also(cast("Any", also))],
                Field(default=field.default, description=field.description),
            )
    if shapings:
        every = shapings_type(sorted([*shaping_kinds(), *shapings], key=lambda kind: kind.place))
        default = Method.model_fields["shaping"]
        fields["shaping"] = (every, Field(default_factory=every, description=default.description))
    tabled = type("Tabled", (), {"__annotations__": {"tables": ClassVar[Any]}, "tables": tables})
    return create_model("Method", __base__=(tabled, Method), __doc__=Method.__doc__, **fields, files=files)


def _check_parts(
    file: UserFile, own: Sequence[type[Part]], parts: Sequence[tuple[str, type[Part]]], lines: Mapping[str, int]
) -> None:
    """Refuse classes that are no whole parts. Raises UserError with all that they lack."""
    problems = []
    for section, part in parts:
        where = f"{shown(file.path)}:{lines.get(part.__name__, 1)}: {part.__name__}"
        if not section:
            problems.append(f"{where} inherits from no part of a method that a file may define ({PAGE})")
            continue
        name = part.key if issubclass(part, Shaping) else part.model_fields["kind"].default
        if not isinstance(name, str) or not _NAME.match(name.replace("_", "-")):
            problems.append(f"{where}: its name {name!r} must be of lower-case letters, digits, _ and -")
        taken = Shaping.registered if issubclass(part, Shaping) else FAMILIES[section].kinds
        if name in taken:
            key = "key" if issubclass(part, Shaping) else "kind"
            problems.append(f'{where}: {key} "{name}" is taken by {taken[name].__name__}. Choose another name')
        if lacking := sorted(getattr(part, "__abstractmethods__", ())):
            s = "" if len(lacking) == 1 else "s"
            family = next(one.__name__ for one in part.__mro__ if one.__module__.startswith(f"{__package__}."))
            problems.append(f"{where} lacks the method{s} {', '.join(lacking)}, which every {family} has ({PAGE})")
        if issubclass(part, Shaping) and part.main_key not in part.model_fields:
            problems.append(f"{where}: main_key must be the parameter that switches it on ({PAGE})")
        required = [key for key, field in part.model_fields.items() if field.is_required()]
        problems += [f"{where}: {key} has no default; write `{key}: ... = Field(DEFAULT, ...)`" for key in required]
    named = [part for _, part in parts]
    used = {base for part in named for base in part.__mro__}
    for kind in own:
        if kind not in used:
            lacks = (
                "key: give it `key: ClassVar[str] = ...`"
                if issubclass(kind, Shaping)
                else "kind of its own: give it `kind: Literal[...] = Field(...)`"
            )
            problems.append(
                f"{shown(file.path)}:{lines.get(kind.__name__, 1)}: {kind.__name__} has no {lacks} ({PAGE})"
            )
    if problems:
        raise UserError(problems)


def _preset(
    file: UserFile, module: ModuleType, parts: Sequence[tuple[str, type[Part]]], lines: Mapping[str, int]
) -> Preset:
    """Return what names the file's parts: its PRESETS, else its one class in place of GRPO's."""
    written, where = vars(module).get("PRESETS"), shown(file.path)
    if written is not None:
        given = list(written) if isinstance(written, (tuple, list)) else [written]
        if (
            len(given) != 1
            or not isinstance(given[0], (MethodPreset, Modifier))
            or getattr(given[0], "imitates", False)
        ):
            has = ", ".join(str(getattr(one, "name", one)) for one in given) or "none"
            raise UserError(
                f"{where}:{_presets_line(file)}: PRESETS must hold one MethodPreset or Modifier of a policy gradient, "
                f"and it has {has}. Put each into a file of its own ({PAGE})."
            )
        preset = cast("Preset", given[0])
    elif not parts:
        raise UserError(
            f"{where}:1: has no method: neither a class that inherits from PolicyLoss, Advantage or another part of "
            f"rlvr_cli.methods, nor PRESETS ({PAGE})."
        )
    elif len(parts) > 1:
        named = ", ".join(f"{part.__name__} (line {lines.get(part.__name__, 1)})" for _, part in parts)
        raise UserError(
            f"{where}:1: has several classes, {named}, and no PRESETS that says how they make one method ({PAGE})."
        )
    else:
        preset = _of_one_class(file, *parts[0])
    if preset.name in (*ALIASES, *METHODS, *MODIFIER_PRESETS):
        raise UserError(f'{where}:1: the name "{preset.name}" is that of a built-in method. Choose another name.')
    if not isinstance(preset.name, str) or not _NAME.match(preset.name):
        said = "must be of lower-case letters, digits and -, at most 40 of them"
        raise UserError(f"{where}:1: the name {preset.name!r} {said}.")
    if isinstance(preset, MethodPreset):
        if preset.inherits and preset.inherits not in METHODS:
            raise UserError(
                f"{where}:{_presets_line(file)}: inherits={preset.inherits!r}: no such method."
                f"{did_you_mean(preset.inherits, METHODS)} Allowed: {', '.join(METHODS)}."
            )
        preset = preset.resolved(METHODS)
    return dataclasses.replace(preset, module=module.__name__, file=str(file.path), aliases=())


def _presets_line(file: UserFile) -> int:
    for node in ast.parse(file.text).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id == "PRESETS" for one in node.targets
        ):
            return node.lineno
    return 1


def _of_one_class(file: UserFile, section: str, part: type[Part]) -> MethodPreset:
    name = file.path.name
    if section not in FAMILIES:
        raise UserError(
            f"{shown(file.path)}:1: {part.__name__} modifies a method, and nothing says how strongly. Write "
            f'`PRESETS = (Modifier("{_name_of(part).replace("_", "-")}", title=..., summary=..., paper=..., '
            f'sets={{"{section}.{part.main_key}": (VALUE, "why")}}),)` ({PAGE}).'
        )
    summary = inspect.cleandoc(part.__doc__ or "").split("\n\n")[0] if "__doc__" in vars(part) else ""
    return MethodPreset(
        _name_of(part).replace("_", "-"),
        title=re.sub(r"(?<=[a-z])(?=[A-Z])", " ", part.__name__),
        summary=" ".join(summary.split()) or f"{part.__name__} of {name}, with all else as in grpo.",
        paper=Paper(name, "a file of your own"),
        extra_cost="not stated",
        sets={f"{section}.kind": (_name_of(part), name)},
        inherits="grpo",
    )


def _check_values(one: UserMethod, lines: Mapping[str, int]) -> None:
    """Refuse a preset whose values are not a method's, or that leaves a class of its file out. Raises UserError."""
    where, preset, kind = shown(one.file.path), one.preset, method_type((one,))
    merged = Merged(schema_of(kind))
    for layer in (*([METHODS["grpo"]] if isinstance(preset, Modifier) else []), preset):
        merged.add(Layer(layer.label, dict(layer.values), preset=True))
    method, faults = validate(kind, merged, lambda section, _: section.contradictions())
    problems = [f"{where}:{_presets_line(one.file)}: PRESETS: {message}" for _, message in faults]
    for section, part in one.parts:
        chosen = functools.reduce(getattr, section.split("."), cast("Any", method))
        if not faults and not (isinstance(chosen, part) and not (isinstance(chosen, Shaping) and not chosen.is_on)):
            does = (
                f"is off in {preset.name}: set {section}.{part.main_key} to what switches it on"
                if section not in FAMILIES
                else f"has no part in {preset.name}: set {section}.kind to {_name_of(part)}"
            )
            problems.append(f"{where}:{lines.get(part.__name__, 1)}: {part.__name__} {does} in PRESETS ({PAGE})")
    if problems:
        raise UserError(problems)


def _guarded(part: type[Part], file: UserFile) -> type[Part]:
    """Make the class whose errors name the file's line, and whose results are what they must be, or are refused."""
    checked = {name: _checked(getattr(part, name), name, file) for name in COMPUTING if hasattr(part, name)}
    made: Any = create_model
    kind = made(part.__name__, __base__=(type("Guarded", (UserPart,), checked), part), __module__=part.__module__)
    kind.__doc__ = part.__doc__
    return cast("type[Part]", kind)


def _checked(function: Callable[..., Any], name: str, file: UserFile) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(self: Any, first: Any, *arguments: Any, **named: Any) -> Any:
        gradients, what = torch.is_grad_enabled(), f"{name} of {type(self).__name__}"
        try:
            with guarded(file, what):
                result = function(self, first, *arguments, **named)
        finally:
            changed = torch.is_grad_enabled() != gradients
            torch.set_grad_enabled(gradients)
        if wrong := "switches torch's gradients on or off" if changed else _wrong_result(name, first, result):
            raise RunError(f"{_line(function, file)}: {what} {wrong}.")
        return result

    return checked


def _wrong_result(name: str, first: Any, result: Any) -> str:
    """Return what is wrong with a result, for what was computed from ``first``: tokens, a rollout or a mask."""
    if name not in (*_PER_TOKEN, *_PER_ROW) or (mask := getattr(first, "mask", first)) is None:
        return ""
    rows, length = mask.shape
    shapes = [(rows, length)] if name in _PER_TOKEN else [(rows, 1), (rows, length)]
    wanted = " or ".join(map(str, shapes))
    if not isinstance(result, torch.Tensor):
        return f"returned {value_text(result)}; a tensor of shape {wanted} is wanted"
    if tuple(result.shape) not in shapes:
        return f"returned shape {tuple(result.shape)} for tokens of shape {(rows, length)}; wanted: {wanted}"
    return ""


def function_line(part: Part, name: str) -> str:
    """Return where a method of the part stands, as `my.py:12`."""
    return _line(getattr(type(part), name), UserFile(Path(str(sys.modules[type(part).__module__].__file__)), ""))


def _line(function: Any, file: UserFile) -> str:
    code = getattr(inspect.unwrap(getattr(function, "fget", function)), "__code__", None)
    line = code.co_firstlineno if code is not None and code.co_filename == str(file.path) else 1
    return f"{shown(file.path)}:{line}"


def recorded_method(values: Mapping[str, Any], files: Sequence[str]) -> type[Method]:
    """Make the section ``method`` of a recorded run without importing its files.

    Kinds and shapings that are not built in keep their keys as they are; they compute nothing.
    """
    kinds: dict[str, tuple[type[Part], ...]] = {}
    for section, family in FAMILIES.items():
        given = values.get(section)
        kind = given.get("kind") if isinstance(given, dict) else None
        if isinstance(given, dict) and isinstance(kind, str) and kind not in family.kinds:
            kinds[section] = (_recorded_part(cast("type[Part]", family), given, {"kind": (Literal[kind], kind)}),)
    shapings = []
    given = values.get("shaping")
    for key, inner in given.items() if isinstance(given, dict) else ():
        if key not in Shaping.registered and isinstance(inner, dict):
            shaping = cast("type[Shaping]", _recorded_part(Shaping, inner, {}))
            shaping.key, shaping.is_on = key, True  # type: ignore[method-assign, assignment]
            shapings.append(shaping)
    return extended_method(
        kinds,
        shapings,
        None,
        (Annotated[tuple[str, ...], BeforeValidator(tuple)], Field(tuple(files), description=FILES)),
    )


def _recorded_part(family: type[Part], values: Mapping[str, Any], fixed: Mapping[str, Any]) -> type[Part]:
    def computes(self: Any, *_: Any, **__: Any) -> Any:
        raise UserError(
            f"{getattr(self, 'kind', type(self).__name__)}: its formula is in a file of the user's, which commands "
            "that read a run do not import."
        )

    absent: dict[str, Any] = {name: computes for name in COMPUTING if hasattr(family, name)}
    if family is Passes:
        absent["names"] = property(computes)
    fields: dict[str, Any] = {key: (Any, None) for key in values if key not in family.model_fields} | dict(fixed)
    made: Any = create_model
    mixin = type("Recorded", (UserPart,), {**absent, "recorded": True, "__annotations__": {"recorded": ClassVar[bool]}})
    kind = made("Recorded", __base__=(mixin, family), __module__=f"{PREFIX}recorded", **fields)
    kind.__abstractmethods__ = frozenset()
    return cast("type[Part]", kind)
