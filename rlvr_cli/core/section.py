"""Strict base classes of configuration sections, and shared types."""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
)
from pydantic_core import CoreSchema, core_schema

from rlvr_cli.core.user_code import PREFIX

Text = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$")]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=10_000_000)]
NotNegative = Annotated[float, Field(ge=0.0)]
Scale = Annotated[float, Field(ge=0.0, le=100.0)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _one_or_more(value: Any) -> Any:
    return _as_tuple(value) if value is None or isinstance(value, list) else (value,)


# YAML has lists; strict validation refuses them for tuples.
FromList = BeforeValidator(_as_tuple)
OneOrMore = BeforeValidator(_one_or_more)


@dataclass(frozen=True)
class Contradiction:
    """Conflicting values: their dotted keys, the one to report first, and a message."""

    keys: tuple[str, ...]
    message: str


class Section(BaseModel):
    """A group of keys, validated strictly: no text for a number, no unknown key, no infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    # The key that a plain value for the section sets; "" = it must be a mapping.
    main_key: ClassVar[str] = ""
    # The discriminator of the section's variants; "" = no variants.
    chooser: ClassVar[str] = ""
    # The keys that another choice resets when layers are merged; None = all of them.
    reset_with_choice: ClassVar[tuple[str, ...] | None] = None

    @classmethod
    def canonical(cls, choice: str) -> str:
        """Return the canonical spelling of a choice; an invalid one unchanged."""
        return choice

    @classmethod
    def unknown_choice_hint(cls, choice: Any) -> str:
        """Return a hint on an invalid choice, with a leading blank; "" = suggest the nearest."""
        return ""

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with ``changes``."""
        checked = type(self)(**{**dict(self), **changes})
        return self.model_copy(update={name: getattr(checked, name) for name in changes})


S = TypeVar("S", bound=Section)


class Choice(Section):
    """A section with several variants, discriminated by its key ``kind``, or another of the family.

    A direct subclass is a family: ``class Advantage(Choice)``. A subclass of the family that gives ``kind`` a default
    registers itself (except in user files, see ``Also``), and a field of the family's type accepts every registered
    kind:

        class RLOOAdvantage(Advantage):
            kind: Literal["rloo"] = Field("rloo", description="...")
    """

    # Discriminator of a family.
    chooser: ClassVar[str] = "kind"
    # Kinds of a family, in the order of definition.
    kinds: ClassVar[Mapping[str, type[Choice]]] = {}

    @classmethod
    def is_family(cls) -> bool:
        # Not by name: pydantic calls it while Choice is being defined.
        return any("is_family" in vars(base) for base in cls.__bases__)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if cls.is_family():
            cls.kinds = {}
        elif cls.chooser in vars(cls).get("__annotations__", {}) and not is_user_class(cls):
            cls.kinds[cls.model_fields[cls.chooser].default] = cls  # type: ignore[index]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if not (cls.is_family() and cls.kinds):
            return handler(source)
        kinds = {name: handler.generate_schema(kind) for name, kind in cls.kinds.items()}
        return core_schema.tagged_union_schema(kinds, discriminator=cls.chooser)


def is_user_class(kind: type) -> bool:
    return kind.__module__.startswith(PREFIX)


@dataclass(frozen=True)
class Also:
    """Annotation of a field with further kinds of its family."""

    kinds: tuple[type[Choice], ...]

    def __get_pydantic_core_schema__(self, source: type[Choice], handler: GetCoreSchemaHandler) -> CoreSchema:
        by_name = {**source.kinds, **{kind.model_fields[kind.chooser].default: kind for kind in self.kinds}}
        kinds = {name: handler.generate_schema(kind) for name, kind in by_name.items()}
        return core_schema.tagged_union_schema(kinds, discriminator=source.chooser)


def import_modules(package: str, but: Collection[str] = ()) -> list[ModuleType]:
    names = [module.name for module in pkgutil.iter_modules(import_module(package).__path__)]
    return [import_module(f"{package}.{name}") for name in names if name not in but]
