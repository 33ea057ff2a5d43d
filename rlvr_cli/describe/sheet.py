"""Describe a method for `rlvr methods show` and the docs, without loading torch."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any

from rlvr_cli.config.load import load_config
from rlvr_cli.config.user_files import names_user_file
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.nested import flatten
from rlvr_cli.core.section import Section
from rlvr_cli.core.yaml import yaml_text
from rlvr_cli.methods.checks import check_user_parts
from rlvr_cli.methods.method import AnyMethod
from rlvr_cli.methods.names import BUILT_IN, MethodTables, parse_method_name, presets_of
from rlvr_cli.methods.preset import Preset

DEFAULT = "default"
# Choice of the configuration -> what it decides.
CHOICES = {
    "advantage": "the advantage A from the rewards",
    "policy_loss": "the weight F of a token from its ratio",
    "shaping": "factors on the advantage",
    "aggregation": "the divisor of the sum over tokens",
    "passes": "which tokens each pass over a rollout trains",
    "kl": "the penalty against the starting model",
    "entropy_bonus": "the entropy bonus in the loss",
    "critic": "the value head and its loss",
    "reward": "a change of the reward",
}


@dataclass(frozen=True)
class Parameter:
    """A key of a method, as in an override: `method.policy_loss.n`.

    ``set_by``: the method or modifier that set it, or `default`. ``source``: reference of the value; empty if only the
    schema sets it.
    """

    key: str
    value: Any
    default: Any
    meaning: str
    set_by: str
    source: str


@dataclass(frozen=True)
class MethodChoice:
    """A choice of the configuration, as `policy_loss`, and what it decides, in words.

    ``kind``: the chosen one; None without kinds. ``source``: its reference, as that of a parameter. ``file``: the
    module that computes it, or None. ``parameters``: the keys except the kind.
    """

    name: str
    decides: str
    kind: str | None
    source: str
    file: str | None
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class KeyChange:
    key: str
    before: Any
    after: Any
    modifier: str


@dataclass(frozen=True)
class MethodSheet:
    """Description of a method.

    Attributes:
        name: canonical.
        presets: the base method, then the modifiers.
        texts: (file, docstring) of the presets' modules.
        choices: those of ``CHOICES``; for sft, which has none of them, its keys as a single choice.
    """

    name: str
    presets: tuple[Preset, ...]
    texts: tuple[tuple[str, MethodText], ...]
    choices: tuple[MethodChoice, ...]
    changes: tuple[KeyChange, ...]

    @property
    def title(self) -> str:
        return " + ".join(preset.title for preset in self.presets)

    @property
    def golden(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for preset in self.presets for name in preset.golden))

    @property
    def example(self) -> str:
        taught = any("advantage.teacher" in preset.sets for preset in self.presets)
        name = "+".join(preset.file or preset.name for preset in self.presets)
        return f"rlvr train --method {name}{' method.advantage.teacher=RUN' * taught}"


def validate_name(text: str) -> str:
    """Return a method's canonical name; one with files is unchanged. Raises UserError for an unknown name."""
    if names_user_file(text):
        return text
    try:
        return str(parse_method_name(text))
    except ValueError as error:
        raise UserError(str(error)) from error


def method_sheet(text: str) -> MethodSheet:
    config = load_config(method=validate_name(text), import_files=True).method
    tables: MethodTables = getattr(type(config), "tables", BUILT_IN)
    presets = presets_of(parse_method_name(config.name, tables), tables)
    modules = dict.fromkeys(preset.module for preset in presets)
    texts = tuple((module_path(module), method_text(module)) for module in modules)
    return MethodSheet(config.name, presets, texts, tuple(_choices(config, presets)), tuple(_changes(presets)))


def _choices(config: AnyMethod, presets: tuple[Preset, ...]) -> Iterator[MethodChoice]:
    name = config.name
    check_user_parts(config)
    if config.policy is None:
        keys = [key for key in type(config).model_fields if key != "name"]
        parameters = tuple(_parameter(presets, config, "", key, type(config)()) for key in keys)
        yield MethodChoice("method", "no rollouts", name, "", None, parameters)
        return
    for choice, decides in CHOICES.items():
        section: Section = getattr(config, choice)
        kind = getattr(section, "kind", None)
        module = type(section).__module__
        sections = {f"{choice}.{key}": value for key, value in section if isinstance(value, Section)}
        defaults = type(section)()
        parameters = tuple(
            _parameter(
                presets, inner, prefix, key, defaults if inner is section else getattr(defaults, prefix.split(".")[1])
            )
            for prefix, inner in {choice: section, **sections}.items()
            for key in type(inner).model_fields
            if not (kind and key == "kind") and f"{prefix}.{key}" not in sections
        )
        source = _setter(presets, f"{choice}.kind")[1] if kind else ""
        file = None if len(sections) == len(type(section).model_fields) else module_path(module)
        yield MethodChoice(choice, decides, kind, source, file, parameters)


def _parameter(presets: tuple[Preset, ...], section: Section, prefix: str, key: str, defaults: Section) -> Parameter:
    field = type(section).model_fields[key]
    dotted = f"{prefix}.{key}" if prefix else key
    set_by, source = _setter(presets, dotted)
    return Parameter(
        key=f"method.{dotted}",
        value=getattr(section, key),
        default=getattr(defaults, key, field.get_default(call_default_factory=True)),
        meaning=field.description or "",
        set_by=set_by,
        source=source,
    )


def _setter(presets: tuple[Preset, ...], dotted: str) -> tuple[str, str]:
    """Return the last preset that sets a key and the source of its value; `default` and "" if no preset sets it."""
    setters = [preset for preset in presets if dotted in flatten(_values(preset, presets[0]))]
    return (setters[-1].name, setters[-1].sources[dotted]) if setters else (DEFAULT, "")


def _changes(presets: tuple[Preset, ...]) -> Iterator[KeyChange]:
    for count in range(1, len(presets)):
        before, after = (
            _resolve("+".join(preset.file or preset.name for preset in presets[:end])) for end in (count, count + 1)
        )
        for key in {**before, **after}:
            if before.get(key) != after.get(key):
                yield KeyChange(f"method.{key}", before.get(key), after.get(key), presets[count].name)


def _resolve(name: str) -> dict[str, Any]:
    plain = load_config(method=name, import_files=True).method.model_dump(exclude={"name", "files"})
    return flatten(plain)


def _values(preset: Preset, base: Preset) -> dict[str, Any]:
    return dict(getattr(preset, "for_base", {}).get(base.name, preset.values))


@dataclass(frozen=True)
class MethodText:
    """The parsed docstring of a method's module.

    Attributes:
        headline: the first paragraph, one sentence.
        definition: the paragraphs in between, verbatim: equations (indented), paper, settings.
        differences: the paragraphs that begin with "How we differ", unwrapped except for list items.
    """

    headline: str
    definition: str
    differences: tuple[str, ...]


def module_path(module: str) -> str:
    """Return the path of a method's module: relative to the repository; absolute for a user file."""
    if module.startswith("rlvr_cli."):
        return f"{module.replace('.', '/')}.py"
    return str(import_module(module).__file__)


def method_text(module: str) -> MethodText:
    """Parse the docstring of a method's module; a user's file may have none."""
    docstring = import_module(module).__doc__ or "(The file has no docstring.)"
    headline, *rest = re.split(r"\n\s*\n", docstring.strip())
    differences: list[str] = []
    definition: list[str] = []
    for paragraph in rest:
        if paragraph.startswith("How we differ"):
            differences.append(paragraph)
        elif differences and paragraph.lstrip().startswith("- "):
            differences[-1] += f"\n{paragraph}"
        else:
            definition.append(paragraph)
    return MethodText(
        headline=unwrap(headline),
        definition="\n\n".join(definition),
        differences=tuple(unwrap(paragraph) for paragraph in differences),
    )


def unwrap(paragraph: str) -> str:
    """Remove line breaks except before list items."""
    items = re.split(r"\n(?=\s*- )", paragraph)
    return "\n".join(" ".join(item.split()) for item in items)


def preset_row(preset: Preset) -> dict[str, Any]:
    return {
        "name": preset.name,
        "title": preset.title,
        "paper": preset.paper.reference,
        "summary": preset.summary,
        "extra_cost": preset.extra_cost,
        "tested_against": [f"golden/{name}.json" for name in preset.golden],
    }


def sheet_as_dict(sheet: MethodSheet) -> dict[str, Any]:
    return {
        "name": sheet.name,
        "title": sheet.title,
        "parts": [
            {**preset_row(preset), "paper": {**dataclasses.asdict(preset.paper), "reference": preset.paper.reference}}
            for preset in sheet.presets
        ],
        "code": [{"file": file, **dataclasses.asdict(text)} for file, text in sheet.texts],
        "choices": [dataclasses.asdict(choice) for choice in sheet.choices],
        "changed_by_modifiers": [dataclasses.asdict(change) for change in sheet.changes],
        "tested_against": [f"golden/{name}.json" for name in sheet.golden],
        "example": sheet.example,
    }


def sheet_lines(sheet: MethodSheet, columns: int) -> Iterator[str]:
    """Yield the sheet as lines of ``columns`` characters, without the table of parameters."""
    yield sheet.name
    for preset in sheet.presets:
        yield ""
        yield f"{preset.title}: {preset.paper.title} ({preset.paper.reference})"
        yield from _indent(preset.summary, columns)
        yield from _indent(f"Extra cost over grpo: {preset.extra_cost}.", columns)
    for file, text in sheet.texts:
        yield ""
        yield f"{file}"
        yield from _indent(text.headline, columns)
        for paragraph in (*text.definition.split("\n\n"), *text.differences):
            if paragraph:
                yield ""
                yield from _indent(paragraph, columns)


def table_rows(sheet: MethodSheet) -> Iterator[tuple[str, str, str, str]]:
    """Yield rows of the table of choices: key, value, default, source (for a kind: its role, then its source).

    For a choice without kinds, only the keys that a preset sets are shown.
    """
    for choice in sheet.choices:
        parameters = [each for each in choice.parameters if choice.kind is not None or each.set_by != DEFAULT]
        if choice.kind == "token_mean":
            parameters = []  # its only key concerns rows
        if choice.name in ("critic", "entropy_bonus") and not parameters:
            continue  # most methods have none
        kind = f" = {choice.kind}" if choice.kind else "" if parameters else ": none"
        yield f"{choice.name}{kind}", "", "", "; ".join(filter(None, (choice.decides, choice.source)))
        for parameter in parameters:
            value, default = yaml_text(parameter.value), yaml_text(parameter.default)
            differs = default if value != default else "="
            yield f"  {parameter.key}", value, differs, parameter.source or parameter.meaning


def change_line(change: KeyChange) -> str:
    before = f"{yaml_text(change.before)} -> " if change.before is not None else ""
    return f"{change.key}: {before}{yaml_text(change.after)}  (+{change.modifier})"


def short_cost(cost: str) -> str:
    """Return the first clause of an extra cost."""
    return re.split(r"[,;:] (?![^(]*\))", cost, maxsplit=1)[0]


def _indent(paragraph: str, columns: int) -> Iterator[str]:
    """Wrap the paragraph, except for indented lines (equations)."""
    for equation, lines in groupby(paragraph.splitlines(), key=lambda line: line.startswith("    ")):
        if equation:
            yield from (f"  {line}".rstrip() for line in lines)
            continue
        for item in unwrap("\n".join(lines)).replace("``", "`").split("\n"):
            hanging = "    " if item.startswith("- ") else "  "
            yield from textwrap.wrap(
                item,
                columns,
                initial_indent="  ",
                subsequent_indent=hanging,
                break_long_words=False,
                break_on_hyphens=False,
            )
