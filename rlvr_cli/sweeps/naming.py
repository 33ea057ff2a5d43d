"""The identity of a trial, and its name: short, unique, and valid as a folder name on every file system."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import leaves
from rlvr_cli.config.schema import Config
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.user_code import SUFFIX
from rlvr_cli.methods.names import canonical_name
from rlvr_cli.sweeps.axes import METHOD, SEED, Axis, AxisPoint, split_names, values_of

# Keys that do not change a training: its folder, tracking, cluster, checkpoints, and benchmarks. The other keys of
# `eval` do not change it either, but `rlvr eval RUN` reads them in the run's copy, which is not rewritten.
NOT_IDENTITY = (("run", "name"), ("run", "dir"), ("track",), ("slurm",), ("checkpoint",), ("eval", "benchmark"))


def config_hash(config: Config) -> str:
    """Hash the keys that determine the numbers of a training to 16 hexadecimal digits."""
    identity = {
        ".".join(path): value
        for path, value in leaves(config)
        if not any(path[: len(other)] == other for other in NOT_IDENTITY)
    }
    return text_digest(json.dumps(identity, sort_keys=True))[:16]


LONGEST = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Abbreviate keys for names: `lr`, `mb` for `mini_batches`, or more of the dotted key if two would collide.

    `run.seed` is `s`; the method has no prefix.
    """
    shorts = {key: "" if key == METHOD else "s" if key == SEED else _initials(key) for key in keys}
    for depth in (1, 2, 3):
        taken = list(shorts.values())
        shorts = {
            key: ".".join(key.split(".")[-depth:]) if taken.count(short) > 1 and key not in (METHOD, SEED) else short
            for key, short in shorts.items()
        }
    return shorts


def _initials(key: str) -> str:
    words = key.removesuffix(".kind").removesuffix(".name").rsplit(".", 1)[-1].split("_")
    return words[0] if len(words) == 1 else "".join(word[:1] for word in words)


def value_text(key: str, value: Any) -> str:
    """Format a value for a name: `3e-6`, `0.2`, `dgpo`, `0.9_0.95`."""
    if key == METHOD and isinstance(value, str):
        try:
            return canonical_name(value)
        except ValueError:
            names = [Path(name).stem if name.endswith(SUFFIX) else name for name in value.split("+")]
            return _sanitize("+".join(names))
    if isinstance(value, bool) or value is None:
        return {True: "on", False: "off", None: "none"}[value]
    if isinstance(value, (int, float)):
        return _format_number(value)
    if isinstance(value, (list, tuple)):
        return "_".join(value_text("", inner) for inner in value)
    if isinstance(value, Mapping):
        return "_".join(f"{value_text('', name)}_{value_text('', inner)}" for name, inner in value.items())
    return _sanitize(str(value).replace("\\", "/").rstrip("/").rsplit("/", 1)[-1])


def _format_number(value: float) -> str:
    """Return the shortest text that parses to ``value``: `64`, `0.2`, `1e-4`."""
    forms = [str(value)] if isinstance(value, int) else [f"{value:g}", f"{value:.5e}", repr(value)]
    short = [
        re.sub(r"\.?0*e([+-])0*(\d)", lambda match: f"e{match[1].replace('+', '')}{match[2]}", form)
        for form in forms
        if float(form) == value
    ]
    return _UNSAFE.sub("-", min(short or [repr(value)], key=len))


def _sanitize(text: str) -> str:
    return _UNSAFE.sub("-", text).strip("-.") or "x"


def short_varying_keys(axes: Sequence[Axis], points: Sequence[tuple[AxisPoint, ...]]) -> dict[str, str]:
    """Abbreviate the keys of ``axes`` that have more than one value among ``points``."""
    keys = [key for axis in axes for key in axis.keys]
    values = [values_of(combination) for combination in points]
    return short_keys([key for key in keys if len({repr(each.get(key)) for each in values}) > 1])


def combination_name(points: Sequence[AxisPoint], shorts: Mapping[str, str], method: str) -> str:
    """Return the name of a trial or row: the names of its named points, then its other values of the keys ``shorts``.

    Args:
        method: named if nothing but the seed varies.
    """
    names, unnamed = split_names(points)
    values = {key: method if key == METHOD else value for key, value in unnamed.items() if key in shorts}
    return trial_name(values, shorts, value_text(METHOD, method), names)


def trial_name(values: Mapping[str, Any], shorts: Mapping[str, str], method: str, names: Sequence[str] = ()) -> str:
    """Return the name of a trial from the ``values`` that vary: ``names`` first, then the method, the seed last."""
    ordered = sorted(values, key=lambda key: (key != METHOD, key == SEED))
    words = [f"{shorts[key]}{value_text(key, values[key])}" for key in ordered]
    if names or not set(values) - {SEED}:
        words = [*(names or [method]), *words]
    return re.sub(r"^[^A-Za-z0-9_]+", "", "-".join(words)) or method


def make_unique(name: str, identity: str, taken: Collection[str]) -> str:
    """Append the start of ``identity`` to ``name`` if it is too long or in ``taken``, ignoring case.

    Some file systems do not distinguish case.
    """
    lower = {other.lower() for other in taken}
    if len(name) <= LONGEST and name.lower() not in lower:
        return name
    return f"{name[:LONGEST].rstrip('-.')}-{identity[:6]}"
