"""The strict base classes of all sections of the configuration, and shared types of values."""

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


# YAML has lists, not tuples; strict validation would refuse them.
FromList = BeforeValidator(_as_tuple)
OneOrMore = BeforeValidator(_one_or_more)


@dataclass(frozen=True)
class Contradiction:
    """Values that cannot stand together: their dotted keys, the one to blame first, and the message."""

    keys: tuple[str, ...]
    message: str


class Section(BaseModel):
    """A group of keys. Strict: no text for a number, no unknown key, no infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    # The key that a plain value in the place of the section sets; "" = it must be a mapping.
    main_key: ClassVar[str] = ""
    # The key that chooses among the variants of the section; "" = there are no variants.
    chooser: ClassVar[str] = ""
    # The keys that another choice takes with it when layers are laid over one another; None = all of them.
    of_the_choice: ClassVar[tuple[str, ...] | None] = None

    @classmethod
    def canonical(cls, choice: str) -> str:
        """The one spelling of a choice, by which choices are compared and stored; an invalid one as it is."""
        return choice

    @classmethod
    def about_unknown(cls, choice: Any) -> str:
        """Return what to say of a choice that is none, with a leading blank; "" = the nearest one is named."""
        return ""

    def replace(self, **changes: Any) -> Self:
        """A copy with other values, checked as the first ones were."""
        checked = type(self)(**{**dict(self), **changes})
        return self.model_copy(update={name: getattr(checked, name) for name in changes})


S = TypeVar("S", bound=Section)


class Choice(Section):
    """A section that is one of several, told apart by its key ``kind``, or another that the family names.

    A direct subclass is a family: ``class Advantage(Choice)``. A subclass of the family that gives ``kind`` a default
    registers itself by being defined (but for those of user files, see ``Also``), and a field of the family's type
    takes every kind registered so far:

        class RLOOAdvantage(Advantage):
            kind: Literal["rloo"] = Field("rloo", description="...")
    """

    # Of a family: the key by which its kinds differ.
    chooser: ClassVar[str] = "kind"
    # Of a family: its kinds, in the order of definition.
    kinds: ClassVar[Mapping[str, type[Choice]]] = {}

    @classmethod
    def is_family(cls) -> bool:
        """Return whether ``cls`` stands for all of its kinds."""
        # Not by name: pydantic asks while Choice itself is being defined.
        return any("is_family" in vars(base) for base in cls.__bases__)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if cls.is_family():
            cls.kinds = {}
        elif cls.chooser in vars(cls).get("__annotations__", {}) and not of_user_file(cls):
            name = cls.model_fields[cls.chooser].default
            other = cls.kinds.get(name)
            if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(
                    f'{cls.__module__}.{cls.__qualname__}: {cls.chooser} "{name}" is taken by {other.__qualname__}'
                )
            cls.kinds[name] = cls  # type: ignore[index]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if not (cls.is_family() and cls.kinds):
            return handler(source)
        kinds = {name: handler.generate_schema(kind) for name, kind in cls.kinds.items()}
        return core_schema.tagged_union_schema(kinds, discriminator=cls.chooser)


def of_user_file(kind: type) -> bool:
    """Return whether a class was defined by a user file, whose classes are values of one configuration."""
    return kind.__module__.startswith(PREFIX)


@dataclass(frozen=True)
class Also:
    """Annotate a field of a family with kinds that it takes besides the registered ones."""

    kinds: tuple[type[Choice], ...]

    def __get_pydantic_core_schema__(self, source: type[Choice], handler: GetCoreSchemaHandler) -> CoreSchema:
        every = {**source.kinds, **{kind.model_fields[kind.chooser].default: kind for kind in self.kinds}}
        kinds = {name: handler.generate_schema(kind) for name, kind in every.items()}
        return core_schema.tagged_union_schema(kinds, discriminator=source.chooser)


def define_all(package: str, but: Collection[str] = ()) -> list[ModuleType]:
    """Every module of ``package``, imported, in the order of their names; without those of the names ``but``."""
    names = [module.name for module in pkgutil.iter_modules(import_module(package).__path__)]
    return [import_module(f"{package}.{name}") for name in names if name not in but]
