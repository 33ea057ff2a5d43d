"""The named methods and their modifiers: what each sets, where its numbers come from, what it costs.

Each is a file in `presets/methods/` or `presets/modifiers/`. A method sets every choice that characterises it; a
modifier sets one choice on top of a method.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlvr_cli.config.method_names import ALIASES, BASES, MODIFIERS, MethodName, parse_method_name
from rlvr_cli.config.yaml_reader import Document, parse, read_text

PRESETS = Path(__file__).parent / "presets"
METHODS, MODIFIER_FOLDER = "methods", "modifiers"
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Paper:
    """Where a method was published; `arxiv` is its number there, or None."""

    title: str
    authors: str
    arxiv: str | None

    @property
    def reference(self) -> str:
        """`Fu et al., arXiv:2603.14389`."""
        return f"{self.authors}, arXiv:{self.arxiv}" if self.arxiv else self.authors


@dataclass(frozen=True)
class Preset:
    """What methods and modifiers have in common.

    Attributes:
        name: as on the command line.
        title: the name in words.
        summary: one line: what it does.
        paper: where it was published.
        code: the module of `rlvr_cli.methods` that computes what is particular to it; None where none does.
        golden: names of the golden files that it is compared with.
        extra_cost: one line: forwards, passes and memory over GRPO.
        values: the keys of `method` that it sets, nested: `{"weight": {"kind": "dgpo", "n": 1.0}}`.
        sources: dotted key below `method` (`weight.n`) -> where its value comes from.
        for_task: task -> values that take the place of `values` there, nested alike.
    """

    name: str
    title: str
    summary: str
    paper: Paper
    code: str | None
    golden: tuple[str, ...]
    extra_cost: str
    values: Values
    sources: Mapping[str, str]
    for_task: Mapping[str, Values]


@dataclass(frozen=True)
class MethodPreset(Preset):
    """A base method."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other spellings of the name."""
        plus_plus = (f"{self.name.removesuffix('-pp')}++",) if self.name.endswith("-pp") else ()
        return (*plus_plus, *(alias for alias, name in ALIASES.items() if name == self.name))


@dataclass(frozen=True)
class Modifier(Preset):
    """What may be joined to a base method with `+`.

    Attributes:
        for_base: base method -> values that take the place of `values` there, nested alike.
    """

    for_base: Mapping[str, Values]


@cache
def method_preset(name: str) -> MethodPreset:
    """The base method of the canonical `name`, without modifiers.

    Raises:
        KeyError: there is no such method.
    """
    if name not in BASES:
        raise KeyError(name)
    return MethodPreset(name=name, **_common(preset_document(METHODS, name).data))


@cache
def modifier(name: str) -> Modifier:
    """The modifier `name`.

    Raises:
        KeyError: there is no such modifier.
    """
    if name not in MODIFIERS:
        raise KeyError(name)
    data = preset_document(MODIFIER_FOLDER, name).data
    return Modifier(name=name, for_base=data.get("for_base") or {}, **_common(data))


def method_presets() -> tuple[MethodPreset, ...]:
    """Every base method."""
    return tuple(map(method_preset, BASES))


def modifiers() -> tuple[Modifier, ...]:
    """Every modifier."""
    return tuple(map(modifier, MODIFIERS))


def presets_of(name: MethodName) -> tuple[Preset, ...]:
    """The base method and the modifiers of a name, in the order in which they are laid over one another."""
    return (method_preset(name.base), *map(modifier, name.modifiers))


def resolve_method_name(text: str) -> MethodName:
    """The parts of a name that fit together.

    Raises:
        ValueError: the message for the user, where a part is unknown, or two parts set the same key.
    """
    name = parse_method_name(text)
    plain = dict(flat(method_preset("grpo").values))
    own = {key for key, value in flat(method_preset(name.base).values) if plain.get(key, ...) != value}
    for number, later in enumerate(name.modifiers):
        keys = dict(flat(modifier(later).values)).keys()
        taken = own & keys
        if taken:
            raise ValueError(
                f'"{text}": {name.base} sets {_choice(taken)} itself, which +{later} would set again. '
                f"Write grpo+{later}, or keep {name.base} and override its keys"
            )
        for earlier in name.modifiers[:number]:
            shared = dict(flat(modifier(earlier).values)).keys() & keys
            if shared:
                raise ValueError(f'"{text}": {earlier} and {later} both set {_choice(shared)}; keep one of them')
    return name


def _choice(keys: Collection[str]) -> str:
    """The section whose kind is among `keys`, or the first of them."""
    kinds = [key.removesuffix(".kind") for key in keys if key.endswith(".kind")]
    return f"method.{min(kinds or keys)}"


def flat(values: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values as (dotted key, value)."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@cache
def preset_document(folder: str, name: str) -> Document:
    """The parsed file of a preset, with the line of each key."""
    return parse(read_text(PRESETS / folder / f"{name}.yaml"))


def _common(data: Mapping[str, Any]) -> dict[str, Any]:
    paper = data["paper"]
    return {
        "title": data["title"],
        "summary": data["summary"],
        "paper": Paper(paper["title"], paper["authors"], paper["arxiv"]),
        "code": data["code"],
        "golden": tuple(data["golden"]),
        "extra_cost": data["extra_cost"],
        "values": data["values"],
        "sources": data["sources"],
        "for_task": data.get("for_task") or {},
    }
