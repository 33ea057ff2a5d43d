"""A method of the user's own: a Python file, executed from its text and registered as the built-in ones.

It may define what a module of this package may: kinds of advantage, policy loss and passes, shapings, and the preset
that gives them a name. A class made here has one key more than the user's, `code`, the hash of the text: runs of two
versions of a file are never taken for one.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, create_model

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.keys import schema_of
from rlvr_cli.core.layers import Layer, Merged, validate
from rlvr_cli.core.own_code import OwnFile, class_lines, imported, line_of, said_of
from rlvr_cli.core.own_modules import TEXT
from rlvr_cli.core.section import Choice
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.methods.aggregation import Aggregation
from rlvr_cli.methods.base import CODE, Advantage, Part, PolicyLoss, Shaping
from rlvr_cli.methods.lopti import Passes
from rlvr_cli.methods.method import AnyMethod, Method
from rlvr_cli.methods.names import ALIASES, METHODS, MODIFIER_PRESETS, parse_method_name
from rlvr_cli.methods.preset import MethodPreset, Modifier, Paper, Preset

PAGE = "docs/methods/own.md"
# The families by the section in which one of their kinds stands.
FAMILIES: Mapping[str, type[Choice]] = {
    "advantage": Advantage,
    "policy_loss": PolicyLoss,
    "aggregation": Aggregation,
    "passes": Passes,
}
# What computes, of any part.
_COMPUTING = (
    *("advantages", "statistics", "weight", "bounds", "shape", "factor"),
    *("count", "coefficients", "selected", "threshold"),
)
_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,39}$")


@dataclass(frozen=True)
class OwnMethod:
    """A file's method or modifier.

    Attributes:
        parts: the classes that the file defines, each with its section: `policy_loss`, `shaping.mine`.
    """

    source: OwnFile
    preset: Preset
    parts: tuple[tuple[str, type[Part]], ...]

    @property
    def places(self) -> set[tuple[str, str]]:
        """What no two files may have in one process: the name, each section's kind."""
        return {("name", self.preset.name), *((section, _called(part)) for section, part in self.parts)}


# By the hash of the text, whatever was executed; by name, what is registered; by its parts, whatever was.
_MADE: dict[str, OwnMethod] = {}
_REGISTERED: dict[str, OwnMethod] = {}
_OF_PART: dict[type[Part], OwnMethod] = {}


def register_method(source: OwnFile) -> tuple[str, bool]:
    """Execute the file where it was not, and give its method its name: that name, and whether anything is new by it.

    Another file, or version of a file, that has the same name or kind gives its place up. Whoever registers what is
    new rebuilds the schema (:func:`rlvr_cli.methods.method.rebuild`) and calls :func:`check_values`.

    Raises:
        UserError: with file and line: a syntax error, an exception, no class, several, a taken name, a lack.
    """
    one = _MADE.get(source.code)
    one = _made(source) if one is None else dataclasses.replace(one, source=source)
    _MADE[source.code] = one
    return register(one)


def register(one: OwnMethod) -> tuple[str, bool]:
    """Give the method its name: that name, and whether anything is new by it."""
    _OF_PART.update({part: one for _, part in one.parts})
    name = one.preset.name
    before = _REGISTERED.get(name)
    if before is not None and before.source.sha256 == one.source.sha256 and before.parts == one.parts:
        return name, False
    for other in [other for other in _REGISTERED.values() if other.places & one.places]:
        withdraw(other.preset.name)
    _REGISTERED[name] = one
    table: dict[str, Any] = METHODS if isinstance(one.preset, MethodPreset) else MODIFIER_PRESETS
    table[name] = one.preset
    for section, part in one.parts:
        if section in FAMILIES:
            FAMILIES[section].kinds = {**FAMILIES[section].kinds, _called(part): cast("Any", part)}
        else:
            Shaping.registered[_called(part)] = cast("type[Shaping]", part)
    return name, True


def is_made(source: OwnFile) -> bool:
    """Whether the file was executed in this process."""
    return source.code in _MADE


def withdraw(name: str) -> None:
    """Take the method of a file out of the tables again."""
    one = _REGISTERED.pop(name)
    METHODS.pop(name, None)
    MODIFIER_PRESETS.pop(name, None)
    for section, part in one.parts:
        if section in FAMILIES:
            kinds = FAMILIES[section].kinds
            FAMILIES[section].kinds = {other: kind for other, kind in kinds.items() if cast("Any", kind) is not part}
        else:
            Shaping.registered.pop(_called(part), None)


def registered() -> set[str]:
    """The hashes of the files whose methods have their names."""
    return {one.source.sha256 for one in _REGISTERED.values()}


def methods_of_files(of: AnyMethod) -> list[OwnMethod]:
    """The files' methods without which this one would not be what it is, each once."""
    method = of.policy
    if method is None:
        return []
    on = [part for part in method.parts if not isinstance(part, Shaping) or part.is_on]
    made = [_OF_PART[type(part)] for part in on if type(part) in _OF_PART]
    names = {one.preset.name for one in made}
    said = parse_method_name(method.name)
    made += [_REGISTERED[name] for name in (said.base, *said.modifiers) if name in {*_REGISTERED} - names]
    return list({one.source.sha256: one for one in made}.values())


def check_values(name: str) -> None:
    """Refuse a registered preset whose values are not a method's, or that leaves a class of its file out.

    Raises UserError with everything found.
    """
    one = _REGISTERED[name]
    file, preset = one.source.file, one.preset
    base = [METHODS["grpo"]] if isinstance(preset, Modifier) else []
    merged = Merged(schema_of(Method))
    for layer in (*base, preset):
        merged.add(Layer(layer.label, dict(layer.values), preset=True))
    method, found = validate(Method, merged, lambda section, _: section.contradictions())
    line = next((node.lineno for node in ast.parse(one.source.text).body if _is_presets(node)), 1)
    problems = [f"{file}:{line}: PRESETS: {message}" for _, message in found]
    lines = class_lines(one.source.text)
    for section, part in one.parts:
        chosen = functools.reduce(getattr, section.split("."), cast("Any", method))
        if not found and not (isinstance(chosen, part) and not (isinstance(chosen, Shaping) and not chosen.is_on)):
            does = (
                f"is off in {name}: set {section}.{part.main_key} to what switches it on"
                if section not in FAMILIES
                else f"has no part in {name}: set {section}.kind to {_called(part)}"
            )
            problems.append(f"{file}:{lines[part.__name__]}: {part.__name__} {does} in PRESETS ({PAGE})")
    if problems:
        raise UserError(problems)


def _is_presets(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(one, ast.Name) and one.id == "PRESETS" for one in node.targets
    )


def _called(part: type[Part]) -> str:
    return part.key if issubclass(part, Shaping) else str(part.model_fields["kind"].default)


def _made(source: OwnFile) -> OwnMethod:
    """The file's parts and preset, as they are registered; the registry is as before."""
    with only_built_in() as (built_in, before):
        module = imported(source, f"rlvr_method_{source.sha256[:16]}")
        parts: list[tuple[str, type[Part]]] = [
            (section, cast("Any", kind))
            for section, family in FAMILIES.items()
            for name, kind in family.kinds.items()
            if name not in built_in[section]
        ]
        parts += [(f"shaping.{key}", kind) for key, kind in Shaping.registered.items() if key not in before]
    lines = class_lines(source.text)
    _check_parts(source, module, [part for _, part in parts], lines)
    vars(module)[TEXT] = source.text  # a package is imported
    preset = _preset(source, module, parts, lines)
    return OwnMethod(source, preset, tuple((section, _guarded(part, source)) for section, part in parts))


@contextlib.contextmanager
def only_built_in() -> Iterator[tuple[dict[str, dict[str, Any]], dict[str, type[Shaping]]]]:
    """Have the registry without what files and packages defined, by section and of shapings; afterwards as before."""
    kinds = {section: family.kinds for section, family in FAMILIES.items()}
    shapings = dict(Shaping.registered)
    built_in = {
        section: {name: kind for name, kind in known.items() if kind.__module__.startswith("rlvr_cli.")}
        for section, known in kinds.items()
    }
    before = {key: kind for key, kind in shapings.items() if kind.__module__.startswith("rlvr_cli.")}
    for section, family in FAMILIES.items():
        family.kinds = dict(built_in[section])
    _set_shapings(before)
    try:
        yield built_in, before
    finally:
        for section, family in FAMILIES.items():
            family.kinds = kinds[section]
        _set_shapings(shapings)


def _set_shapings(shapings: Mapping[str, type[Shaping]]) -> None:
    Shaping.registered.clear()
    Shaping.registered.update(shapings)


def _check_parts(source: OwnFile, module: ModuleType, parts: list[type[Part]], lines: Mapping[str, int]) -> None:
    """Refuse classes that are no whole parts. Raises UserError with all that they lack."""
    problems = []
    for part in parts:
        where = f"{source.file}:{lines.get(part.__name__, 1)}: {part.__name__}"
        called = _called(part) if issubclass(part, Shaping) or part.model_fields["kind"].default is not None else None
        if not isinstance(called, str) or not _NAME.match(called.replace("_", "-")):
            problems.append(f"{where}: its name {called!r} must be of lower-case letters, digits, _ and -")
        lacking = sorted(cast("Any", part).__abstractmethods__)
        if lacking:
            s = "" if len(lacking) == 1 else "s"
            problems.append(
                f"{where} lacks the method{s} {', '.join(lacking)}, which every {_family(part)} has ({PAGE})"
            )
        if CODE in part.model_fields:
            problems.append(f"{where}: {CODE} is a key that the class gets here; rename yours")
        if issubclass(part, Shaping) and part.main_key not in part.model_fields:
            problems.append(f"{where}: main_key must be the parameter that switches it on ({PAGE})")
        required = [key for key, field in part.model_fields.items() if field.is_required()]
        problems += [f"{where}: {key} has no default; write `{key}: ... = Field(DEFAULT, ...)`" for key in required]
    nameless = [
        one
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, Part) and one.__module__ == module.__name__ and one not in parts
    ]
    used = {base for part in parts for base in part.__mro__}
    for one in nameless:
        if one not in used:
            lacks = (
                "key: give it `key: ClassVar[str] = ...`"
                if issubclass(one, Shaping)
                else "kind of its own: give it `kind: Literal[...] = Field(...)`"
            )
            problems.append(f"{source.file}:{lines.get(one.__name__, 1)}: {one.__name__} has no {lacks} ({PAGE})")
    if problems:
        raise UserError(problems)


def _family(part: type[Part]) -> str:
    return next(base.__name__ for base in part.__mro__ if base.__module__.startswith(f"{__package__}."))


def _preset(
    source: OwnFile, module: ModuleType, parts: Sequence[tuple[str, type[Part]]], lines: Mapping[str, int]
) -> Preset:
    """What gives the file's parts a name: its PRESETS, else its one class in place of GRPO's."""
    written = vars(module).get("PRESETS")
    named = ", ".join(f"{part.__name__} (line {lines.get(part.__name__, 1)})" for _, part in parts)
    if written is not None:
        found = list(written) if isinstance(written, (tuple, list)) else [written]
        if len(found) != 1 or not isinstance(found[0], (MethodPreset, Modifier)):
            has = ", ".join(str(getattr(one, "name", one)) for one in found) or "none"
            raise UserError(
                f"{source.file}: PRESETS must hold one MethodPreset or Modifier, and it has {has}. Put each into a "
                f"file of its own ({PAGE})."
            )
        preset = cast("Preset", found[0])
    elif not parts:
        raise UserError(
            f"{source.file}: has no method: neither a class that inherits from PolicyLoss, Advantage or another part "
            f"of rlvr_cli.methods, nor PRESETS ({PAGE})."
        )
    elif len(parts) > 1:
        raise UserError(
            f"{source.file}: has several classes, {named}, and no PRESETS that says how they make one method ({PAGE})."
        )
    else:
        preset = _of_one_class(source, *parts[0])
    taken = {**{alias: alias for alias in ALIASES}, **METHODS, **MODIFIER_PRESETS}
    own = [one.preset.name for one in _REGISTERED.values()]
    if preset.name in taken and preset.name not in own:
        raise UserError(f'{source.file}: the name "{preset.name}" is that of a built-in method. Choose another name.')
    if not _NAME.match(preset.name):
        raise UserError(
            f"{source.file}: the name {preset.name!r} must be of lower-case letters, digits and -, at most 40 of them"
        )
    if isinstance(preset, MethodPreset):
        if preset.inherits and preset.inherits not in METHODS:
            raise UserError(
                f"{source.file}: inherits={preset.inherits!r}: no such method.{did_you_mean(preset.inherits, METHODS)} "
                f"Allowed: {', '.join(METHODS)}."
            )
        preset = preset.resolved(METHODS)
    return dataclasses.replace(preset, module=module.__name__, file=source.file, aliases=())


def _of_one_class(source: OwnFile, section: str, part: type[Part]) -> MethodPreset:
    if section not in FAMILIES:
        raise UserError(
            f"{source.file}: {part.__name__} modifies a method, and nothing says how strongly. Write "
            f'`PRESETS = (Modifier("{_called(part).replace("_", "-")}", title=..., summary=..., paper=..., '
            f'sets={{"{section}.{part.main_key}": (VALUE, "why")}}),)` ({PAGE}).'
        )
    said = inspect.cleandoc(part.__doc__ or "").split("\n\n")[0] if "__doc__" in vars(part) else ""
    name = Path(source.file).name
    return MethodPreset(
        _called(part).replace("_", "-"),
        title=re.sub(r"(?<=[a-z])(?=[A-Z])", " ", part.__name__),
        summary=" ".join(said.split()) or f"{part.__name__} of {name}, with all else as in grpo.",
        paper=Paper(name, "a file of your own"),
        extra_cost="not stated",
        sets={f"{section}.kind": (_called(part), name)},
        inherits="grpo",
    )


def _guarded(part: type[Part], source: OwnFile) -> type[Part]:
    """The class with the key `code`, whose exceptions name the file."""
    speaking = {name: _speaking(getattr(part, name), name, source.file) for name in _COMPUTING if hasattr(part, name)}
    # The hash of a version before stands in a configuration that names the file again.
    code = Annotated[Literal[source.code], BeforeValidator(lambda _: source.code)]  # type: ignore[name-defined]
    field = Field(source.code, description="The hash of the method's file.")
    return create_model(
        part.__name__,
        __base__=(type("Guarded", (), speaking), part),
        __module__=part.__module__,
        __doc__=part.__doc__,
        **{CODE: cast("Any", (code, field))},
    )


def _speaking(function: Callable[..., Any], name: str, file: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def speaking(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return function(self, *arguments, **named)
        except (UserError, RunError):
            raise
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryError":
                raise
            said = f"{name} of {type(self).__name__} raised {said_of(error)}"
            raise RunError(f"{line_of(error, file)}: {said}.") from error

    return speaking


def function_line(part: Part, name: str) -> str:
    """Where a method of the part stands, as `my.py:12`."""
    kind = next(base for base in type(part).__mro__ if name in vars(base) and base.__name__ != "Guarded")
    module = cast("Any", inspect.getmodule(kind))
    text = vars(module).get(TEXT)
    nodes: Iterable[ast.AST] = ast.walk(ast.parse(text)) if text else ()
    return f"{module.__file__}:{next(_lines(nodes, kind.__name__, name), 1)}"


def _lines(nodes: Iterable[ast.AST], kind: str, name: str) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, ast.ClassDef) and node.name == kind:
            yield from (one.lineno for one in node.body if isinstance(one, ast.FunctionDef) and one.name == name)
