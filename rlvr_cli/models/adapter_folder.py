"""Folders with a low-rank adapter in PEFT's format, and the base model that it belongs to. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rlvr_cli.core.errors import UserError

WEIGHTS = "adapter_model.safetensors"
PEFT_CONFIG = "adapter_config.json"
BASE = "base.json"


@dataclass(frozen=True)
class Base:
    """The model that an adapter was trained on, and how it was loaded.

    Attributes:
        name: a preset, a hub id or a folder. revision: of a hub model, the very commit where it is known.
        kind: ``qlora`` where its linear layers were held in 4 bits.
        dtype: number format of its weights; auto where nothing says.
        fingerprint: of its weights, from ``rlvr_cli.models.adapter.fingerprint``; None where nothing says.
    """

    name: str
    revision: str | None = None
    kind: Literal["lora", "qlora"] = "lora"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    fingerprint: str | None = None

    def text(self) -> str:
        """The content of base.json."""
        return json.dumps(asdict(self), indent=2) + "\n"


def holds_adapter(folder: Path) -> bool:
    """Whether ``folder`` holds an adapter, and no model beside it."""
    return (folder / PEFT_CONFIG).is_file() and not any(folder.glob("model*.safetensors"))


def base_of(folder: Path) -> Base:
    """The base of the adapter in ``folder``: from our base.json, else from PEFT's own configuration.

    Raises UserError where neither can be read.
    """
    path = folder / BASE if (folder / BASE).is_file() else folder / PEFT_CONFIG
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if path.name == BASE:
            return Base(**said)
        name = said["base_model_name_or_path"]
        if said.get("peft_type") != "LORA" or not name:
            raise ValueError("it is no LoRA adapter with the name of its base model")
        return Base(str(name), said.get("revision"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"model: {path} does not say which model the adapter belongs to ({error}).") from error
