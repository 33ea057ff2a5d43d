"""Find a model's architecture without its weights: a preset's numbers, a folder's or the cache's config.json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.config.paths import local_path
from rlvr_cli.config.presets import preset_document
from rlvr_cli.models.architecture import Architecture, counted, from_config
from rlvr_cli.models.source import (
    PRESETS,
    base_of,
    connection_problem,
    holds_adapter,
    hub_presets,
    is_cached,
    is_offline,
)


@dataclass(frozen=True)
class Found:
    """A model's architecture and where its numbers come from, or None and why it is not known."""

    architecture: Architecture | None
    source: str


def find_architecture(name: str, revision: str | None = None, *, download: bool = True) -> Found:
    """The architecture of a preset, a model folder or a hub id. Loads no weights.

    A family whose parameters cannot be worked out is built by transformers on the meta device, without memory.

    Args:
        download: whether config.json (some kilobytes) may be fetched from the hub.
    """
    presets = hub_presets()
    known = {**presets, **{hub: hub for hub in presets.values()}}
    if name in known and revision is None:
        preset = next(preset for preset, hub in presets.items() if hub == known[name])
        return _described(preset_document("models", preset).data["architecture"], f"the preset {preset}")
    folder = PRESETS.get(name) or local_path(name)
    if folder.is_dir():
        if holds_adapter(folder) and not (folder / "config.json").is_file():
            base = base_of(folder)
            return find_architecture(base.name, base.revision, download=download)
        return _read(folder / "config.json")
    hub_id = known.get(name, name)
    if is_cached(hub_id) or (download and not is_offline() and connection_problem() is None):
        return _from_hub(hub_id, revision)
    return Found(None, f"{hub_id} is neither a folder nor in the local cache, and the hub is not asked")


def _from_hub(hub_id: str, revision: str | None) -> Found:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import hf_hub_download

    try:
        return _read(Path(hf_hub_download(hub_id, "config.json", revision=revision)))
    except (OSError, ValueError) as error:
        return Found(None, f"{hub_id}: its config.json cannot be had ({str(error).splitlines()[0]})")


def _read(file: Path) -> Found:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return Found(None, f"{file}: {error}")
    if not isinstance(config, dict):
        return Found(None, f"{file}: not a JSON object")
    return _described(config, str(file), file.parent)


def _described(config: Mapping[str, Any], source: str, folder: Path | None = None) -> Found:
    try:
        found = from_config(config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        return Found(None, f"{source}: a size is missing or no number ({error!r})")
    if found is not None:
        return Found(found, source)
    family = config.get("model_type")
    if folder is None:
        return Found(None, f"{source}: the family {family} is not known")
    return _on_the_meta_device(config, source, folder)


def _on_the_meta_device(config: Mapping[str, Any], source: str, folder: Path) -> Found:
    """The number of parameters of a model that transformers builds without memory; its blocks are taken as ours."""
    family = config.get("model_type")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        # Where nothing is said, transformers asks whether to run a repository's own code.
        described = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(described, trust_remote_code=False)
    except Exception as error:  # whatever a model's own code may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return Found(None, f"{source}: transformers cannot build the family {family} ({reason})")
    found = counted(config, model.num_parameters())
    if found is None:
        return Found(None, f"{source}: the family {family} names its sizes in its own way")
    return Found(found, f"{source}; parameters of the family {family} counted on the meta device, blocks assumed alike")
