"""Names of methods: a base method, and modifiers joined to it with `+`, as in `reinforce-pp+reweight+lopti`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rlvr_cli.core.nested import flatten
from rlvr_cli.core.section import import_modules
from rlvr_cli.core.text import did_you_mean, nearest
from rlvr_cli.methods.base import Shaping
from rlvr_cli.methods.preset import MethodPreset, Modifier, Preset

# Modules of this package that import all methods, and define no component.
ABOVE = ("method", "equivalence", "user", "checks")


def _register_presets() -> tuple[dict[str, MethodPreset], dict[str, Modifier]]:
    """Return every method by the date of its paper, those without an arXiv number last, and every modifier."""
    presets = [
        dataclasses.replace(preset, module=module.__name__)
        for module in import_modules(__package__, but=ABOVE)
        for preset in getattr(module, "PRESETS", ())
    ]
    written = {preset.name: preset for preset in presets if isinstance(preset, MethodPreset)}
    methods = [preset.with_inherited(written) for preset in written.values()]
    modifiers = [preset for preset in presets if isinstance(preset, Modifier)]
    methods.sort(key=lambda preset: (preset.imitates, preset.paper.arxiv or "9999"))
    order = [*(f"shaping.{kind.key}" for kind in shaping_kinds()), "passes"]
    order += ["reward.source", "reward.noise", "reward.length"]
    modifiers.sort(key=lambda preset: _position(next(iter(preset.sets)), order))
    return {preset.name: preset for preset in methods}, {preset.name: preset for preset in modifiers}


def _position(key: str, order: Sequence[str]) -> int:
    return next((index for index, section in enumerate(order) if f"{key}.".startswith(f"{section}.")), len(order))


def shaping_kinds() -> list[type[Shaping]]:
    """Return every shaping, the outermost factor of the advantage first: in reverse order of application."""
    return sorted(Shaping.registered.values(), key=lambda kind: kind.order)


# The papers' spellings end in the separator, so they are replaced before a name is split.
_PLUS_PLUS = re.compile(r"\b(reinforce|raft)\+\+(?=\+|$)")

METHODS, MODIFIER_PRESETS = _register_presets()
BASES, MODIFIERS = METHODS.keys(), MODIFIER_PRESETS.keys()
ALIASES = {alias: preset.name for preset in METHODS.values() for alias in preset.aliases} | {
    "ar-lopti": "reweight+lopti"
}


@dataclass(frozen=True)
class MethodTables:
    """The known methods and modifiers: built-in ones, and possibly those of user files."""

    methods: Mapping[str, MethodPreset]
    modifiers: Mapping[str, Modifier]


BUILT_IN = MethodTables(METHODS, MODIFIER_PRESETS)


@dataclass(frozen=True)
class MethodName:
    """A parsed name. `str()` returns its canonical spelling."""

    base: str
    modifiers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "+".join((self.base, *self.modifiers))


def parse_method_name(text: str, tables: MethodTables = BUILT_IN) -> MethodName:
    """Parse a name, in any case, with `_` for `-` and with the aliases.

    Modifiers are sorted by their order of application, so that each combination has one name. Raises ValueError with
    the message for the user, for an unknown, missing or repeated part.
    """
    plain = _PLUS_PLUS.sub(r"\1-pp", re.sub(r"\s+", "", text).lower().replace("_", "-"))
    names = [name for written in plain.split("+") for name in ALIASES.get(written, written).split("+")]
    base, *modifiers = names
    quoted = f'"{text}"'
    if not base and modifiers and all(modifiers):
        raise ValueError(f"{quoted} has no base method before its first +, as in grpo{plain}")
    if not all(names):
        raise ValueError(f"{quoted} has an empty part; names are joined with one +, as in dgpo+lopti{_pp_hint(plain)}")
    if base not in tables.methods:
        _refuse_base(base, text, tables)
    for modifier in modifiers:
        if modifier not in tables.modifiers:
            _refuse_modifier(base, modifier, quoted, tables)
    for modifier in modifiers:
        if modifiers.count(modifier) > 1:
            raise ValueError(f"{quoted} repeats the modifier {modifier}. Remove one")
    if tables.methods[base].imitates and modifiers:
        raise ValueError(
            f"{quoted}: {base} imitates worked solutions, without rollouts, advantages or passes for "
            f"{' and '.join(modifiers)} to modify. Write `{base}`, or `grpo+{'+'.join(modifiers)}`"
        )
    order = list(tables.modifiers)
    return MethodName(base, tuple(sorted(modifiers, key=order.index)))


def canonical_name(text: str, tables: MethodTables = BUILT_IN) -> str:
    """Return the canonical spelling: `REINFORCE++` is `reinforce-pp`. Raises as `parse_method_name`."""
    return str(parse_method_name(text, tables))


def nearest_method(text: str, tables: MethodTables = BUILT_IN) -> str | None:
    """Return the valid name nearest to the invalid `text`, or None."""
    plain = _PLUS_PLUS.sub(r"\1-pp", re.sub(r"\s+", "", text).lower().replace("_", "-"))
    base, *modifiers = [word for word in plain.split("+") if word] or [""]
    guess = nearest(base, (*tables.methods, *ALIASES))
    if guess is None:
        return None
    guesses = [nearest(modifier, (*tables.modifiers, *ALIASES)) for modifier in modifiers]
    try:
        return canonical_name("+".join(dict.fromkeys([guess, *(name for name in guesses if name)])), tables)
    except ValueError:
        return ALIASES.get(guess, guess)


def _pp_hint(plain: str) -> str:
    missing = re.search(r"\b(reinforce|raft)\+\+(?=[^+])", plain)
    return f". With {missing[1]}++ that makes three: {missing[1]}+++..., or {missing[1]}-pp+..." if missing else ""


def _refuse_base(base: str, text: str, tables: MethodTables) -> None:
    if base in tables.modifiers:
        raise ValueError(f'"{text}": {base} is a modifier, not a method. Write `grpo+{base}`')
    guess = nearest_method(text, tables)
    hint = f" Did you mean `{guess}`?" if guess else ""
    raise ValueError(f'unknown method "{text}".{hint} Allowed: {", ".join(tables.methods)}')


def _refuse_modifier(base: str, modifier: str, written: str, tables: MethodTables) -> None:
    if modifier in tables.methods:
        raise ValueError(
            f"{written}: base methods {base} and {modifier} cannot be combined. Remove one. Modifiers: "
            f"{', '.join(tables.modifiers)}"
        )
    aliases = [alias for alias, name in ALIASES.items() if set(name.split("+")) <= {*tables.modifiers}]
    hint = did_you_mean(modifier, (*tables.modifiers, *aliases))
    raise ValueError(f'{written}: unknown modifier "{modifier}".{hint} Modifiers: {", ".join(tables.modifiers)}')


def presets_of(name: MethodName, tables: MethodTables = BUILT_IN) -> tuple[Preset, ...]:
    return (tables.methods[name.base], *(tables.modifiers[modifier] for modifier in name.modifiers))


def resolve_method_name(text: str, tables: MethodTables = BUILT_IN) -> MethodName:
    """Parse a name and check that its presets are compatible. Raises ValueError with the message for the user."""
    name = parse_method_name(text, tables)
    plain = flatten(METHODS["grpo"].values)
    own = {key for key, value in flatten(tables.methods[name.base].values).items() if plain.get(key, ...) != value}
    for number, later in enumerate(name.modifiers):
        keys = flatten(tables.modifiers[later].values).keys()
        others = {earlier: flatten(tables.modifiers[earlier].values).keys() for earlier in name.modifiers[:number]}
        for earlier, taken in {name.base: own, **others}.items():
            if shared := taken & keys:
                remedy = f"Write grpo+{later}, or keep {earlier} and override its keys"
                raise ValueError(
                    f'"{text}": {earlier} and {later} cannot be combined: both set {_conflicting_section(shared)}. '
                    f"{remedy if earlier == name.base else 'Remove one'}"
                )
    return name


def _conflicting_section(keys: Collection[str]) -> str:
    """Return the section whose kind is among `keys`, or the first key, a shaping as a whole."""
    kinds = [key.removesuffix(".kind") for key in keys if key.endswith(".kind")]
    first = min(kinds or keys)
    return "method." + (".".join(first.split(".")[:2]) if first.startswith("shaping.") else first)
