"""The digest of a trial's configuration, and its name: short, unique, and valid on every file system."""

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
from rlvr_cli.sweeps.axes import METHOD, SEED, Axis, AxisPoint, merge_values, split_names

# Keys that do not change a training. Nor do the other keys of `eval`, but `rlvr eval RUN` reads them in the run's copy,
# which is not rewritten.
IGNORED_KEYS = (("run", "name"), ("run", "dir"), ("track",), ("slurm",), ("checkpoint",), ("eval", "benchmark"))


def config_digest(config: Config) -> str:
    """Return a digest of the keys that affect a training, 16 hexadecimal digits."""
    identity = {
        ".".join(path): value
        for path, value in leaves(config)
        if not any(path[: len(prefix)] == prefix for prefix in IGNORED_KEYS)
    }
    return text_digest(json.dumps(identity, sort_keys=True))[:16]


MAX_LENGTH = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


def abbreviate_keys(keys: Sequence[str]) -> dict[str, str]:
    """Abbreviate keys for names: `lr`, `mb` for `mini_batches`, or more of the dotted key to avoid collisions.

    `run.seed` is `s`; the method has no prefix.
    """
    shorts = {key: "" if key == METHOD else "s" if key == SEED else _abbreviate(key) for key in keys}
    for depth in (1, 2, 3):
        taken = list(shorts.values())
        shorts = {
            key: ".".join(key.split(".")[-depth:]) if taken.count(short) > 1 and key not in (METHOD, SEED) else short
            for key, short in shorts.items()
        }
    return shorts


def _abbreviate(key: str) -> str:
    words = key.removesuffix(".kind").removesuffix(".name").rsplit(".", 1)[-1].split("_")
    return words[0] if len(words) == 1 else "".join(word[:1] for word in words)


def abbreviate_value(key: str, value: Any) -> str:
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
        return "_".join(abbreviate_value("", inner) for inner in value)
    if isinstance(value, Mapping):
        return "_".join(f"{abbreviate_value('', name)}_{abbreviate_value('', inner)}" for name, inner in value.items())
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


def abbreviate_varying_keys(axes: Sequence[Axis], points: Sequence[tuple[AxisPoint, ...]]) -> dict[str, str]:
    keys = [key for axis in axes for key in axis.keys]
    values = [merge_values(combination) for combination in points]
    return abbreviate_keys([key for key in keys if len({repr(each.get(key)) for each in values}) > 1])


def combination_name(points: Sequence[AxisPoint], shorts: Mapping[str, str], method: str) -> str:
    """Return the name of a trial or row: its named points, then other values; ``method`` if only the seed varies."""
    names, unnamed = split_names(points)
    values = {key: method if key == METHOD else value for key, value in unnamed.items() if key in shorts}
    return trial_name(values, shorts, abbreviate_value(METHOD, method), names)


def trial_name(values: Mapping[str, Any], shorts: Mapping[str, str], method: str, names: Sequence[str] = ()) -> str:
    """Return the name of a trial: ``names``, the method, the other ``values`` that vary, the seed."""
    ordered = sorted(values, key=lambda key: (key != METHOD, key == SEED))
    words = [f"{shorts[key]}{abbreviate_value(key, values[key])}" for key in ordered]
    if names or not set(values) - {SEED}:
        words = [*(names or [method]), *words]
    return re.sub(r"^[^A-Za-z0-9_]+", "", "-".join(words)) or method


def make_unique(name: str, identity: str, taken: Collection[str]) -> str:
    """Append the start of ``identity`` to a name that is too long or taken, ignoring case as some file systems do."""
    lower = {other.lower() for other in taken}
    if len(name) <= MAX_LENGTH and name.lower() not in lower:
        return name
    return f"{name[:MAX_LENGTH].rstrip('-.')}-{identity[:6]}"
