"""What makes two trials the same: the resolved configuration without what does not decide the numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rlvr_cli.config.load import leaves
from rlvr_cli.config.schema import Config
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.yaml import shown

# Where a run is kept, sent and started from, how often it is saved, and what it is evaluated on when it is done.
ELSEWHERE = (
    ("run", "name"),
    ("run", "dir"),
    ("run", "track"),
    ("launch", "launcher"),
    ("launch", "accelerate_config"),
    ("slurm",),
    ("checkpoint",),
    ("eval", "benchmark"),
)


def deciding(config: Config) -> Iterator[tuple[str, Any]]:
    """The keys that decide a training's numbers, dotted, with their values."""
    for path, value in leaves(config):
        if not any(path[: len(other)] == other for other in ELSEWHERE):
            yield ".".join(path), value


def identity(config: Config) -> str:
    """A hash of :func:`deciding`, 16 hexadecimal digits: defaults that are written out change nothing."""
    text = json.dumps(dict(deciding(config)), sort_keys=True)
    return text_digest(text)[:16]


def differences(before: Config, after: Config) -> list[str]:
    """`optimizer.lr: 0.001 -> 0.003`, for each deciding key in which two configurations differ."""
    old, new = dict(deciding(before)), dict(deciding(after))
    return [
        f"{key}: {_said(old, key)} -> {_said(new, key)}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key, ...) != new.get(key, ...)
    ]


def _said(values: dict[str, Any], key: str) -> str:
    return shown(values[key]) if key in values else "(no such key)"
