"""Named methods and modifiers, with the source of each value and their cost.

Each is registered by the tuple ``PRESETS`` of the module with its formula. A method sets its characteristic keys and
inherits the rest from another one; a modifier sets one choice on top of a method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlvr_cli.core.nested import nest

Values = Mapping[str, Any]
# Key below `method` -> value and source.
Sets = Mapping[str, tuple[Any, str]]


def trust_region(low: float, high: float, source: str) -> Sets:
    return {"policy_loss.eps_low": (low, source), "policy_loss.eps_high": (high, source)}


@dataclass(frozen=True)
class Paper:
    """The publication of a method; `arxiv`: its id, or None."""

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
        summary: one line.
        paper: its publication.
        sets: key below `method` (`policy_loss.n`) -> its value and source.
        for_task: task -> values that replace those of `sets`.
        golden: names of the golden files to compare with.
        extra_cost: one line: forwards, passes and memory over GRPO.
        aliases: other spellings of the name.
        module: name of its module; set by the registry.
        file: path of the user file; "" = built in.
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
        return self.file or f"preset {self.name}"

    @property
    def values(self) -> Values:
        """Its values as nested keys of `method`: `{"policy_loss": {"kind": "dgpo", "n": 1.0}}`."""
        return nest({key: value for key, (value, _) in self.sets.items()})

    @property
    def sources(self) -> Mapping[str, str]:
        return {key: source for key, (_, source) in self.sets.items()}

    def values_for(self, task: str, base: str) -> Iterator[Values]:
        """Yield its values on `task`, of a modifier those with the method `base`, nested, in the order of merging."""
        yield self.values
        if base in (special := getattr(self, "for_base", {})):
            yield nest(special[base])
        if task in self.for_task:
            yield nest(self.for_task[task])


@dataclass(frozen=True)
class MethodPreset(Preset):
    """A base method.

    Attributes:
        imitates: whether it trains on demonstrations, without components and modifiers.
        inherits: the method with the defaults of its values; "" = none.
        trainer: the name of its trainer class in `rlvr_cli`; "" = none.
    """

    imitates: bool = False
    inherits: str = ""
    trainer: str = ""

    def with_inherited(self, presets: Mapping[str, MethodPreset]) -> MethodPreset:
        """Add the inherited values, except those of components of another kind. Raises KeyError for no such method."""
        if not self.inherits:
            return self
        inherited = presets[self.inherits].with_inherited(presets).sets
        replaced = tuple(
            key.removesuffix("kind")
            for key, (kind, _) in self.sets.items()
            if key.endswith(".kind") and kind != inherited.get(key, (kind, ""))[0]
        )
        inherited_values = {key: value for key, value in inherited.items() if not key.startswith(replaced)}
        return replace(self, sets={**inherited_values, **self.sets})


@dataclass(frozen=True)
class Modifier(Preset):
    """A change to a base method, joined with `+`. ``for_base``: base method -> values that replace those of `sets`."""

    for_base: Mapping[str, Values] = field(default_factory=dict)
