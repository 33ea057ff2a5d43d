"""Small runs on the lab, of supervised fine-tuning unless a method is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from rlvr_cli.config.load import load_config
from rlvr_cli.training import run as running

STEPS = 12
SETTINGS = {
    "train.rollouts": 3,
    "rollout.prompts": 2,
    "rollout.group_size": 4,
    "update.mini_batches": 2,
    "update.epochs": 2,
    "update.micro_batch": 2,
    "checkpoint.every": 5,
    "method.demonstrations": 20,
    "run.threads": 1,
    "validation.every": 1,
    "validation.problems": 6,
    "validation.samples": 2,
    "validation.pass_at": [1, 2],
}


def configure(folder: Path, name: str, method: str = "sft", **changes: Any) -> Any:
    settings = {**SETTINGS, **{key.replace("__", "."): value for key, value in changes.items()}}
    if method != "sft" or "method.data" in settings:
        del settings["method.demonstrations"]
    overrides = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]
    return load_config(method=method, overrides=[f"run.dir={folder}", f"run.name={name}", *overrides])


def start(folder: Path, name: str, method: str = "sft", *, overwrite: bool = False, **changes: Any) -> running.RunEnd:
    config = configure(folder, name, method, **changes)
    return running.start_training(config, overwrite=overwrite, console=Console(quiet=True))
