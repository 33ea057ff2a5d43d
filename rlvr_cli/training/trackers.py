"""What `run.track` names: which packages it needs, and which numbers a tracker is sent. Loads none of them."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Mapping
from typing import Any

from rlvr_cli.core.errors import UserError

# The module that a tracker's integration in transformers loads, and what installs it.
PACKAGES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "tensorboard": (("tensorboard",), 'pip install "rlvr[tensorboard]"'),
    "wandb": (("wandb",), 'pip install "rlvr[wandb]"'),
    "trackio": (("trackio",), 'pip install "rlvr[trackio]"'),
    "mlflow": (("mlflow",), 'pip install "rlvr[mlflow]"'),
}


def check_trackers(names: Iterable[str]) -> None:
    """Raise UserError, with what installs them, for trackers whose package is not installed."""
    lacking = [
        f"run.track={name}: the package {module} is not installed. {command}, or leave {name} out of run.track."
        for name in names
        for modules, command in [PACKAGES[name]]
        for module in modules
        if importlib.util.find_spec(module) is None
    ]
    if lacking:
        raise UserError(lacking)


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics.jsonl as plain numbers, without its step: it is the axis.

    What is nested gets its parts joined: `{"eval": {"greedy": {"accuracy": 1}}}` is `eval_greedy/accuracy`, which
    transformers' integrations show as eval/greedy/accuracy, and all else as train/... . No number, no entry.
    """
    return {name: value for name, value in _flat(row, "") if name != "step"}


def _flat(values: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, float]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}/" if prefix else f"{name}_")
        elif isinstance(value, bool | int | float) and math.isfinite(value):
            yield name, float(value) if isinstance(value, float) else int(value)
