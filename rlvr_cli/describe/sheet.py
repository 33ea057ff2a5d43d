"""All facts about a method, without loading torch, for `rlvr methods show` and the docs.

Docstrings of the methods' modules are read, not imported.
"""

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
from rlvr_cli.config.user_files import names_a_file
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.section import Section
from rlvr_cli.core.yaml import yaml_text
from rlvr_cli.methods.checks import check_user_parts
from rlvr_cli.methods.method import AnyMethod
from rlvr_cli.methods.names import BUILT_IN, MethodTables, parse_method_name, presets_of
from rlvr_cli.methods.preset import Preset, flat

DEFAULT = "default"
# Choice of the configuration -> what it decides.
CHOICES = {
    "advantage": "the advantage A from the rewards",
    "policy_loss": "the weight F of a token from its ratio",
    "shaping": "factors on the advantage",
    "aggregation": "the divisor of the sum over tokens",
    "passes": "which tokens each pass over a rollout trains",
    "kl": "the penalty against the starting model",
    "critic": "the value head and its loss",
    "reward": "a replacement of the reward",
}


@dataclass(frozen=True)
class Parameter:
    """One key of a method.

    Attributes:
        key: as in an override, `method.policy_loss.n`.
        value: with this method.
        default: of the schema, for this kind.
        meaning: one sentence.
        set_by: the method or modifier that set it, or `default`.
        source: where the number comes from; empty if only the schema sets it.
    """

    key: str
    value: Any
    default: Any
    meaning: str
    set_by: str
    source: str


@dataclass(frozen=True)
class PartChoice:
    """One of the choices.

    Attributes:
        name: `policy_loss`.
        decides: what is chosen, in words.
        kind: the kind that was chosen; None where there is one only.
        source: where the kind comes from; empty if only the schema sets it.
        file: the module that computes it, or None.
        parameters: its keys, but for the kind.
    """

    name: str
    decides: str
    kind: str | None
    source: str
    file: str | None
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class KeyChange:
    """A key that a modifier changed."""

    key: str
    before: Any
    after: Any
    modifier: str


@dataclass(frozen=True)
class MethodSheet:
    """A method, described.

    Attributes:
        name: canonical.
        parts: the base method, then the modifiers.
        texts: (file, its docstring) of each module that is particular to a part.
        choices: the five and KL and reward; for sft, which has none of them, its own keys as one.
    """

    name: str
    parts: tuple[Preset, ...]
    texts: tuple[tuple[str, MethodText], ...]
    choices: tuple[PartChoice, ...]
    changes: tuple[KeyChange, ...]

    @property
    def title(self) -> str:
        return " + ".join(part.title for part in self.parts)

    @property
    def golden(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in self.parts for name in part.golden))

    @property
    def example(self) -> str:
        return f"rlvr train --method {'+'.join(part.file or part.name for part in self.parts)}"


def known_name(text: str) -> str:
    """Return the canonical spelling of a method's name; one with files as it stands. Raises UserError for no method."""
    if names_a_file(text):
        return text
    try:
        return str(parse_method_name(text))
    except ValueError as error:
        raise UserError(str(error)) from error


def method_sheet(text: str) -> MethodSheet:
    """The sheet of the method that `text` names. Raises UserError for an unknown name."""
    config = load_config(method=known_name(text), import_files=True).method
    tables: MethodTables = getattr(type(config), "tables", BUILT_IN)
    parts = presets_of(parse_method_name(config.name, tables), tables)
    modules = dict.fromkeys(part.module for part in parts)
    texts = tuple((module_path(module), method_text(module)) for module in modules)
    return MethodSheet(config.name, parts, texts, tuple(_choices(config, parts)), tuple(_changes(parts)))


def _choices(config: AnyMethod, parts: tuple[Preset, ...]) -> Iterator[PartChoice]:
    name = config.name
    check_user_parts(config)
    if config.policy is None:
        keys = [key for key in type(config).model_fields if key != "name"]
        parameters = tuple(_own_key(config, key) for key in keys)
        yield PartChoice("method", "no rollouts: its own keys", name, "", None, parameters)
        return
    for choice, decides in CHOICES.items():
        section: Section = getattr(config, choice)
        kind = getattr(section, "kind", None)
        module = type(section).__module__
        inner = {f"{choice}.{key}": value for key, value in section if isinstance(value, Section)} or {choice: section}
        parameters = tuple(
            _parameter(parts, held, place, key)
            for place, held in inner.items()
            for key in type(held).model_fields
            if not (kind and key == "kind")
        )
        source = _setter(parts, f"{choice}.kind")[1] if kind else ""
        yield PartChoice(
            choice, decides, kind, source, None if inner.keys() != {choice} else module_path(module), parameters
        )


def _own_key(config: Section, key: str) -> Parameter:
    field = type(config).model_fields[key]
    default = field.get_default(call_default_factory=True)
    return Parameter(f"method.{key}", getattr(config, key), default, field.description or "", DEFAULT, "")


def _parameter(parts: tuple[Preset, ...], section: Section, place: str, key: str) -> Parameter:
    field = type(section).model_fields[key]
    dotted = f"{place}.{key}"
    set_by, source = _setter(parts, dotted)
    return Parameter(
        key=f"method.{dotted}",
        value=getattr(section, key),
        default=field.get_default(call_default_factory=True),
        meaning=field.description or "",
        set_by=set_by,
        source=source,
    )


def _setter(parts: tuple[Preset, ...], dotted: str) -> tuple[str, str]:
    """The last part that sets a key, and the value's source; `default` and an empty source if none does."""
    setters = [part for part in parts if dotted in dict(flat(_values(part, parts[0])))]
    return (setters[-1].name, setters[-1].sources[dotted]) if setters else (DEFAULT, "")


def _changes(parts: tuple[Preset, ...]) -> Iterator[KeyChange]:
    """The keys that each modifier changed."""
    for count in range(1, len(parts)):
        before, after = (
            _resolved("+".join(part.file or part.name for part in parts[:end])) for end in (count, count + 1)
        )
        for key in {**before, **after}:
            if before.get(key) != after.get(key):
                yield KeyChange(f"method.{key}", before.get(key), after.get(key), parts[count].name)


def _resolved(name: str) -> dict[str, Any]:
    plain = load_config(method=name, import_files=True).method.model_dump(exclude={"name", "files"})
    return dict(flat(plain))


def _values(part: Preset, base: Preset) -> dict[str, Any]:
    """What `part` sets on top of `base`."""
    return dict(getattr(part, "for_base", {}).get(base.name, part.values))


@dataclass(frozen=True)
class MethodText:
    """The docstring of a module of `rlvr_cli.methods`, in parts.

    Attributes:
        headline: the first paragraph, one sentence.
        definition: the paragraphs in between as written: equations (indented), paper, settings.
        equation: the indented blocks of the definition alone.
        differences: the paragraphs that begin with "How we differ", each on one line but for its list items.
    """

    headline: str
    definition: str
    equation: str
    differences: tuple[str, ...]


def module_path(module: str) -> str:
    """Where the module of a method lies: in the repository, or a file of the user's own."""
    if module.startswith("rlvr_cli."):
        return f"{module.replace('.', '/')}.py"
    return str(import_module(module).__file__)


def method_text(module: str) -> MethodText:
    """The docstring of a method's module; a file of the user's own may have none."""
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
    equations = [textwrap.dedent(block) for paragraph in definition for block in _indented_runs(paragraph)]
    return MethodText(
        headline=unwrapped(headline),
        definition="\n\n".join(definition),
        equation="\n\n".join(equations),
        differences=tuple(unwrapped(paragraph) for paragraph in differences),
    )


def _indented_runs(paragraph: str) -> list[str]:
    """The runs of indented lines."""
    blocks: list[list[str]] = [[]]
    for line in paragraph.splitlines():
        if line.startswith("    "):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return ["\n".join(block) for block in blocks if block]


def unwrapped(paragraph: str) -> str:
    """Without hard line breaks, except in front of list items."""
    items = re.split(r"\n(?=\s*- )", paragraph)
    return "\n".join(" ".join(item.split()) for item in items)


def preset_row(preset: Preset) -> dict[str, Any]:
    """A row of `rlvr methods`."""
    return {
        "name": preset.name,
        "title": preset.title,
        "paper": preset.paper.reference,
        "summary": preset.summary,
        "extra_cost": preset.extra_cost,
        "tested_against": [f"golden/{name}.json" for name in preset.golden],
    }


def sheet_as_dict(sheet: MethodSheet) -> dict[str, Any]:
    """Everything, for `--format json`."""
    return {
        "name": sheet.name,
        "title": sheet.title,
        "parts": [
            {**preset_row(part), "paper": {**dataclasses.asdict(part.paper), "reference": part.paper.reference}}
            for part in sheet.parts
        ],
        "code": [{"file": file, **dataclasses.asdict(text)} for file, text in sheet.texts],
        "choices": [dataclasses.asdict(choice) for choice in sheet.choices],
        "changed_by_modifiers": [dataclasses.asdict(change) for change in sheet.changes],
        "tested_against": [f"golden/{name}.json" for name in sheet.golden],
        "example": sheet.example,
    }


def sheet_lines(sheet: MethodSheet, columns: int) -> Iterator[str]:
    """The sheet as text of so many columns, without the table of parameters."""
    yield sheet.name
    for part in sheet.parts:
        yield ""
        yield f"{part.title}: {part.paper.title} ({part.paper.reference})"
        yield from _indented(part.summary, columns)
        yield from _indented(f"Extra cost over grpo: {part.extra_cost}.", columns)
    for file, text in sheet.texts:
        yield ""
        yield f"{file}"
        yield from _indented(text.headline, columns)
        for paragraph in (*text.definition.split("\n\n"), *text.differences):
            if paragraph:
                yield ""
                yield from _indented(paragraph, columns)


def table_rows(sheet: MethodSheet) -> Iterator[tuple[str, str, str, str]]:
    """Rows of the table of choices: key, value, default, source (of a kind: what it decides, then its source).

    A choice without kinds is a set of switches: of these, only what a part of the method sets is shown.
    """
    for choice in sheet.choices:
        parameters = [item for item in choice.parameters if choice.kind is not None or item.set_by != DEFAULT]
        if choice.kind == "token_mean":
            parameters = []  # it divides by tokens, and its key is about rows
        if choice.name == "critic" and not parameters:
            continue  # most methods have none
        kind = f" = {choice.kind}" if choice.kind else "" if parameters else ": none"
        yield f"{choice.name}{kind}", "", "", "; ".join(filter(None, (choice.decides, choice.source)))
        for parameter in parameters:
            value, default = yaml_text(parameter.value), yaml_text(parameter.default)
            differs = default if value != default else "="
            yield f"  {parameter.key}", value, differs, parameter.source or parameter.meaning


def change_line(change: KeyChange) -> str:
    """A key that a modifier changed, or added along with the kind that it belongs to."""
    before = f"{yaml_text(change.before)} -> " if change.before is not None else ""
    return f"{change.key}: {before}{yaml_text(change.after)}  (+{change.modifier})"


def short_cost(cost: str) -> str:
    """The first clause of an extra cost."""
    return re.split(r"[,;:] (?![^(]*\))", cost, maxsplit=1)[0]


def _indented(paragraph: str, columns: int) -> Iterator[str]:
    """Wrapped again, but for indented lines, which are equations."""
    for equation, lines in groupby(paragraph.splitlines(), key=lambda line: line.startswith("    ")):
        if equation:
            yield from (f"  {line}".rstrip() for line in lines)
            continue
        for item in unwrapped("\n".join(lines)).replace("``", "`").split("\n"):
            hanging = "    " if item.startswith("- ") else "  "
            yield from textwrap.wrap(
                item,
                columns,
                initial_indent="  ",
                subsequent_indent=hanging,
                break_long_words=False,
                break_on_hyphens=False,
            )
