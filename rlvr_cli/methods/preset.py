"""Named methods and modifiers: what each sets, where its numbers come from, what it costs.

Each is in the tuple ``PRESETS`` of the module that computes what is particular to it, which is all it takes to have
a name. A method sets what characterises it and inherits the rest of another one; a modifier sets one choice on top of a
method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Values = Mapping[str, Any]
# Key below `method` -> its value, and where that comes from.
Sets = Mapping[str, tuple[Any, str]]


def trust_region(low: float, high: float, source: str) -> Sets:
    """Set the bounds 1 - low and 1 + high of the ratio."""
    return {"policy_loss.eps_low": (low, source), "policy_loss.eps_high": (high, source)}


@dataclass(frozen=True)
class Paper:
    """The publication of a method; `arxiv` is its number there, or None."""

    title: str
    authors: str
    arxiv: str | None = None

    @property
    def reference(self) -> str:
        """`Fu et al., arXiv:2603.14389`."""
        return f"{self.authors}, arXiv:{self.arxiv}" if self.arxiv else self.authors


@dataclass(frozen=True)
class Preset:
    """Common base of methods and modifiers.

    Attributes:
        name: as on the command line.
        title: the name in words.
        summary: one line: what it does.
        paper: where it was published.
        sets: key below `method` (`policy_loss.n`) -> its value and source.
        for_task: task -> values that take the place of those of `sets` there.
        golden: names of the golden files that it is compared with.
        extra_cost: one line: forwards, passes and memory over GRPO.
        aliases: other spellings of the name.
        module: the name of the module in which it stands; the registry fills it in.
        file: the path of the user's file; "" = it is built in.
    """

    name: str
    title: str
    summary: str
    paper: Paper
    sets: Sets = field(default_factory=dict)
    for_task: Mapping[str, Values] = field(default_factory=dict)
    golden: tuple[str, ...] = ()
    extra_cost: str = "none"
    aliases: tuple[str, ...] = ()
    module: str = ""
    file: str = ""

    @property
    def label(self) -> str:
        """Return what an error names as the place of a value of it."""
        return self.file or f"preset {self.name}"

    @property
    def values(self) -> Values:
        """The keys of `method` that it sets, nested: `{"policy_loss": {"kind": "dgpo", "n": 1.0}}`."""
        return nested({key: value for key, (value, _) in self.sets.items()})

    @property
    def sources(self) -> Mapping[str, str]:
        """Key below `method` -> where its value comes from."""
        return {key: source for key, (_, source) in self.sets.items()}

    def values_for(self, task: str, base: str | None = None) -> Iterator[Values]:
        """Return what it sets on `task`, nested, in the order in which it is laid over what was there."""
        yield self.values
        if task in self.for_task:
            yield nested(self.for_task[task])


@dataclass(frozen=True)
class MethodPreset(Preset):
    """A base method.

    Attributes:
        imitates: whether it imitates demonstrations: it has no parts, and so no modifiers.
        inherits: the method whose values it has where `sets` has none; "" = none.
        trainer: the name of its trainer class, which `rlvr_cli` has; "" = none.
    """

    imitates: bool = False
    inherits: str = ""
    trainer: str = ""

    def resolved(self, presets: Mapping[str, MethodPreset]) -> MethodPreset:
        """Add what it inherits, except the keys of a part of which it sets another kind.

        Raises:
            KeyError: no such method.
        """
        if not self.inherits:
            return self
        inherited = presets[self.inherits].resolved(presets).sets
        replaced = tuple(
            key.removesuffix("kind")
            for key, (kind, _) in self.sets.items()
            if key.endswith(".kind") and kind != inherited.get(key, (kind, ""))[0]
        )
        inherited_values = {key: value for key, value in inherited.items() if not key.startswith(replaced)}
        return replace(self, sets={**inherited_values, **self.sets})


@dataclass(frozen=True)
class Modifier(Preset):
    """A change that is joined to a base method with `+`.

    Attributes:
        for_base: base method -> values that take the place of those of `sets` there.
    """

    for_base: Mapping[str, Values] = field(default_factory=dict)

    def values_for(self, task: str, base: str | None = None) -> Iterator[Values]:
        yield self.values
        if base is not None and base in self.for_base:
            yield nested(self.for_base[base])
        if task in self.for_task:
            yield nested(self.for_task[task])


def nested(values: Values) -> dict[str, Any]:
    """Dotted keys as mappings in one another."""
    values_nested: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        section_values = values_nested
        for section in sections:
            section_values = section_values.setdefault(section, {})
        section_values[last] = value
    return values_nested


def flat(values: Values, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values as (dotted key, value)."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
