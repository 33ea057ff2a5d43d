"""Names of methods: a base method, and modifiers joined to it with `+`, as in `reinforce-pp+reweight+lopti`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlvr_cli.config.nearest import did_you_mean, nearest

# In the order of `rlvr methods`: what came first, then one paper after the other.
BASES = (
    "grpo",
    "dapo",
    "dr-grpo",
    "gspo",
    "rloo",
    "ppo",
    "cispo",
    "gppo",
    "ce-gppo",
    "aspo",
    "dgpo",
    "acpo",
    "acpo-max",
    "acpo-mean",
    "reweight",
    "lopti",
    "reinforce-pp",
    "gtpo",
    "pl",
    "nl",
    "cl",
    "tnpl",
    "tnnl",
    "tncl",
    "raft-pp",
    "sft",
)
# In the order in which they act, which is that of a canonical name.
MODIFIERS = (
    "reweight",
    "high-entropy",
    "conflict",
    "entropy-filter",
    "entropy-penalty",
    "lopti",
    "low-only",
    "high-only",
    "entropy-min",
    "noise",
)
ALIASES = {
    "acpo-avg": "acpo-mean",
    "advantage-reweighting": "reweight",
    "ar": "reweight",
    "ar-lopti": "reweight+lopti",
    "nsr": "nl",
    "psr": "pl",
}
# The papers' own spellings end in the separator: they are replaced before a name is split.
_PLUS_PLUS = re.compile(r"\b(reinforce|raft)\+\+(?=\+|$)")


@dataclass(frozen=True)
class MethodName:
    """A name taken apart. `str()` gives its one canonical spelling."""

    base: str
    modifiers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "+".join((self.base, *self.modifiers))


def parse_method_name(text: str) -> MethodName:
    """The parts of a name, in any case, with `_` for `-` and with the aliases.

    Modifiers come out in the order in which they act, so that each combination has one name.

    Raises:
        ValueError: the message for the user, where a part is unknown, missing, or there twice.
    """
    plain = _PLUS_PLUS.sub(r"\1-pp", re.sub(r"\s+", "", text).lower().replace("_", "-"))
    parts = [part for written in plain.split("+") for part in ALIASES.get(written, written).split("+")]
    base, *modifiers = parts
    shown = f'"{text}"'
    if not base and modifiers and all(modifiers):
        raise ValueError(f"{shown} has no base method before its first +, as in grpo{plain}")
    if not all(parts):
        raise ValueError(f"{shown} has an empty part; names are joined with one +, as in dgpo+lopti{_pp_hint(plain)}")
    if base not in BASES:
        _refuse_base(base, text)
    for modifier in modifiers:
        if modifier not in MODIFIERS:
            _refuse_modifier(base, modifier, shown)
    for modifier in modifiers:
        if modifiers.count(modifier) > 1:
            raise ValueError(f"{shown} has the modifier {modifier} twice; name each once")
    if base == "sft" and modifiers:
        raise ValueError(
            f"{shown}: sft imitates worked solutions, with no rollouts, advantages or passes for "
            f"{' and '.join(modifiers)} to modify; write `sft`, or `grpo+{'+'.join(modifiers)}`"
        )
    return MethodName(base, tuple(sorted(modifiers, key=MODIFIERS.index)))


def canonical_name(text: str) -> str:
    """The canonical spelling: `REINFORCE++` is `reinforce-pp`.

    Raises:
        ValueError: as `parse_method_name`.
    """
    return str(parse_method_name(text))


def nearest_method(text: str) -> str | None:
    """The valid name that someone who wrote the invalid `text` most likely meant, or None."""
    plain = _PLUS_PLUS.sub(r"\1-pp", re.sub(r"\s+", "", text).lower().replace("_", "-"))
    base, *modifiers = [part for part in plain.split("+") if part] or [""]
    guess = nearest(base, (*BASES, *ALIASES))
    if guess is None:
        return None
    kept = [nearest(modifier, (*MODIFIERS, *ALIASES)) for modifier in modifiers]
    try:
        return canonical_name("+".join(dict.fromkeys([guess, *(name for name in kept if name)])))
    except ValueError:
        return ALIASES.get(guess, guess)


def _pp_hint(plain: str) -> str:
    missing = re.search(r"\b(reinforce|raft)\+\+(?=[^+])", plain)
    return f". With {missing[1]}++ that makes three: {missing[1]}+++..., or {missing[1]}-pp+..." if missing else ""


def _refuse_base(base: str, text: str) -> None:
    if base in MODIFIERS:
        raise ValueError(f'"{text}": {base} modifies a method and is none itself; write `grpo+{base}`')
    guess = nearest_method(text)
    hint = f" Did you mean `{guess}`?" if guess else ""
    raise ValueError(f'unknown method "{text}".{hint} Allowed: {", ".join(BASES)}')


def _refuse_modifier(base: str, modifier: str, shown: str) -> None:
    if modifier in BASES:
        raise ValueError(
            f"{shown} joins two base methods, {base} and {modifier}; a method has one. "
            f"After a + come modifiers: {', '.join(MODIFIERS)}"
        )
    aliases = [alias for alias, name in ALIASES.items() if set(name.split("+")) <= set(MODIFIERS)]
    hint = did_you_mean(modifier, (*MODIFIERS, *aliases))
    raise ValueError(f'{shown}: unknown modifier "{modifier}".{hint} Modifiers: {", ".join(MODIFIERS)}')
