"""What makes two trials the same, and their names: what varies, short, unique, good as a folder's name everywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rlvr_cli.config.load import leaves
from rlvr_cli.config.schema import Config
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.yaml import yaml_text
from rlvr_cli.methods.names import canonical_name
from rlvr_cli.sweeps.axes import METHOD, SEED

# Where a run is kept, sent and started from, how often it is saved, and what it is evaluated on when it is done.
ELSEWHERE = (("run", "name"), ("run", "dir"), ("track",), ("slurm",), ("checkpoint",), ("eval", "benchmark"))


def deciding(config: Config) -> Iterator[tuple[str, Any]]:
    """The keys that decide a training's numbers, dotted, with their values."""
    for path, value in leaves(config):
        if not any(path[: len(other)] == other for other in ELSEWHERE):
            yield ".".join(path), value


def config_hash(config: Config) -> str:
    """A hash of :func:`deciding`, 16 hexadecimal digits: defaults that are written out change nothing."""
    text = json.dumps(dict(deciding(config)), sort_keys=True)
    return text_digest(text)[:16]


def config_differences(before: Config, after: Config) -> list[str]:
    """`optimizer.lr: 0.001 -> 0.003`, for each deciding key in which two configurations differ."""
    old, new = dict(deciding(before)), dict(deciding(after))
    return [
        f"{key}: {_said(old, key)} -> {_said(new, key)}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key, ...) != new.get(key, ...)
    ]


def _said(values: dict[str, Any], key: str) -> str:
    return yaml_text(values[key]) if key in values else "(no such key)"


LONGEST = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """What stands for each key in a name: `lr`, `mb` for `mini_batches`, or more of it where two would agree.

    `run.seed` is `s`; the method stands for itself.
    """
    found = {key: "" if key == METHOD else "s" if key == SEED else _initials(key) for key in keys}
    for parts in (1, 2, 3):
        taken = list(found.values())
        found = {
            key: ".".join(key.split(".")[-parts:]) if taken.count(short) > 1 and key not in (METHOD, SEED) else short
            for key, short in found.items()
        }
    return found


def _initials(key: str) -> str:
    words = key.removesuffix(".kind").removesuffix(".name").rsplit(".", 1)[-1].split("_")
    return words[0] if len(words) == 1 else "".join(word[:1] for word in words)


def value_text(key: str, value: Any) -> str:
    """A value as a part of a name: `3e-6`, `0.2`, `dgpo`, `0.9_0.95`."""
    if key == METHOD and isinstance(value, str):
        try:
            return canonical_name(value)
        except ValueError:
            return _safe(value)
    if isinstance(value, bool) or value is None:
        return {True: "on", False: "off", None: "none"}[value]
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return "_".join(value_text("", inner) for inner in value)
    if isinstance(value, Mapping):
        return "_".join(f"{value_text('', name)}_{value_text('', inner)}" for name, inner in value.items())
    return _safe(str(value).replace("\\", "/").rstrip("/").rsplit("/", 1)[-1])


def _number(value: float) -> str:
    """The shortest that reads back to ``value``: `64`, `0.2`, `1e-4`."""
    forms = [str(value)] if isinstance(value, int) else [f"{value:g}", f"{value:.5e}", repr(value)]
    short = [
        re.sub(r"\.?0*e([+-])0*(\d)", lambda match: f"e{match[1].replace('+', '')}{match[2]}", form)
        for form in forms
        if float(form) == value
    ]
    return _UNSAFE.sub("-", min(short or [repr(value)], key=len))


def _safe(text: str) -> str:
    return _UNSAFE.sub("-", text).strip("-.") or "x"


def trial_name(values: Mapping[str, Any], shorts: Mapping[str, str], fallback: str, names: Sequence[str] = ()) -> str:
    """The name of a trial from the ``values`` that vary: the method first, the seed last.

    Args:
        fallback: the method, for a trial of which nothing but the seed varies.
        names: what stands in front, for values that have a name of their own.
    """
    ordered = sorted(values, key=lambda key: (key != METHOD, key == SEED))
    parts = [f"{shorts[key]}{value_text(key, values[key])}" for key in ordered]
    if names or not set(values) - {SEED}:
        parts = [*(names or [fallback]), *parts]
    return re.sub(r"^[^A-Za-z0-9_]+", "", "-".join(parts)) or fallback


def unique(name: str, identity: str, taken: Collection[str]) -> str:
    """``name``, with the beginning of its trial's ``identity`` where it is too long, or one of ``taken`` already.

    Letters that differ in case alone are one name on some file systems.
    """
    lower = {other.lower() for other in taken}
    if len(name) <= LONGEST and name.lower() not in lower:
        return name
    return f"{name[:LONGEST].rstrip('-.')}-{identity[:6]}"
