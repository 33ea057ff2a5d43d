"""Read the architecture of a decoder-only transformer from a preset or config.json, without its weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import preset_document
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.models.libraries import quiet_hub
from rlvr_cli.models.sampling.memory import kv_bytes
from rlvr_cli.models.source import (
    PRESETS,
    find_connection_problem,
    holds_adapter,
    hub_presets,
    is_cached,
    is_hub_id,
    is_offline,
    read_base,
    resolve_model,
    weight_shapes,
)


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer with grouped-query attention, rotary positions and gated feed-forward networks.

    Attributes:
        family: config.json's ``model_type``.
        hidden, intermediate: width of the residual stream and of the feed-forward network.
        heads, kv_heads, head_dim: query heads, key and value heads, and the width of each.
        tied: whether the head is the embedding matrix.
        parameters: number in the whole model, a tied head counted once.
    """

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    parameters: int

    @property
    def qk_norm(self) -> bool:
        return self.family == "qwen3"

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """The (inputs, outputs) of each linear layer of a block."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @property
    def outside_embedding(self) -> int:
        """The number of parameters without embedding and head."""
        return self.parameters - self.embedding * (1 if self.tied else 2)

    @property
    def block(self) -> int:
        """The number of parameters of a block: an equal share of all but embedding, head and last norm."""
        return (self.outside_embedding - self.hidden) // self.layers

    def linear_parameters(self, targets: Collection[str] | None = None) -> int:
        """Count the weights of the blocks' linear layers with names in ``targets`` (None = all)."""
        shapes = [shape for name, shape in self.linear_shapes.items() if targets is None or name in targets]
        return self.layers * sum(inputs * outputs for inputs, outputs in shapes)

    def adapter_parameters(self, rank: int, targets: Collection[str] | None = None) -> int:
        """Count the parameters of low-rank adapters: rank x (inputs + outputs) per layer (LoRA, arXiv:2106.09685)."""
        shapes = [shape for name, shape in self.linear_shapes.items() if targets is None or name in targets]
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in shapes)

    def kv_bytes_per_token(self, element: int) -> int:
        return kv_bytes(self.layers, self.kv_heads, self.head_dim, element)


def from_config(config: Mapping[str, Any], parameters: int | None = None) -> Architecture:
    """Return the architecture of a config.json; ``parameters``: None = count them on the meta device.

    Raises KeyError, TypeError, ValueError or ZeroDivisionError if a size is missing or not a number.
    """
    family, heads, hidden = str(config["model_type"]), int(config["num_attention_heads"]), int(config["hidden_size"])
    return Architecture(
        family=family,
        hidden=hidden,
        intermediate=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        # Qwen3's default is 128.
        head_dim=int(config.get("head_dim") or (128 if family == "qwen3" else hidden // heads)),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        parameters=_count_parameters(config) if parameters is None else parameters,
    )


def _count_parameters(config: Mapping[str, Any]) -> int:
    quiet_hub()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model_config = AutoConfig.for_model(**config)
    with torch.device("meta"):
        return int(AutoModelForCausalLM.from_config(model_config, trust_remote_code=False).num_parameters())


def count_parameters(model: Any) -> int:
    """Count the parameters of a loaded model without adapters, 4-bit packing and sharding."""
    import torch

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    with torch.device("meta"):
        return int(type(base)(copy.deepcopy(base.config)).num_parameters())


@dataclass(frozen=True)
class ArchitectureInfo:
    """A model's architecture and its source, or None and the reason."""

    architecture: Architecture | None
    source: str


def find_architecture(name: str, revision: str | None = None) -> ArchitectureInfo:
    """Find the architecture of a preset, a model folder or a hub id, without its weights.

    Of a hub id, config.json (some kilobytes) may be fetched. Raises UserError for an invalid name.
    """
    presets = hub_presets()
    hub_ids = {**presets, **{hub: hub for hub in presets.values()}}
    if name in hub_ids and revision is None:
        preset = next(preset for preset, hub in presets.items() if hub == hub_ids[name])
        values = dict(preset_document("models", preset).data["architecture"])
        return ArchitectureInfo(from_config(values, values["parameters"]), f"the preset {preset}")
    folder = PRESETS.get(name) or local_path(name)
    if folder.is_dir():
        if holds_adapter(folder) and not (folder / "config.json").is_file():
            base = read_base(folder)
            return find_architecture(base.name, base.revision)
        return _read_config(folder / "config.json")
    hub_id = hub_ids.get(name, name)
    if not is_hub_id(hub_id):
        resolve_model(name, revision=revision)
    if not is_cached(hub_id) and (problem := "HF_HUB_OFFLINE is set" if is_offline() else find_connection_problem()):
        return ArchitectureInfo(None, f"{hub_id} is not in the local cache ({problem}); use a folder with config.json")
    quiet_hub()
    from huggingface_hub import hf_hub_download

    try:
        return _read_config(Path(hf_hub_download(hub_id, "config.json", revision=revision)))
    except (OSError, ValueError) as error:
        return ArchitectureInfo(None, f"{hub_id}: its config.json cannot be downloaded ({str(error).splitlines()[0]})")


def _read_config(file: Path) -> ArchitectureInfo:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        shape = from_config(config, parameters=0)
    except (OSError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        return ArchitectureInfo(None, f"{file}: cannot be read, or lacks a size ({error!r})")
    family = shape.family
    try:
        shapes = weight_shapes(file.parent)
    except UserError:
        shapes = {}
    if shape.tied:
        shapes.pop("lm_head.weight", None)
    if shapes and "quantization_config" not in config:
        counted, source = sum(map(prod, shapes.values())), f"{file}; parameters counted in its weights"
    else:
        try:
            counted = _count_parameters(config)
        except Exception as error:  # any error of a model class
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            return ArchitectureInfo(None, f"{file}: transformers cannot build the family {family} ({reason})")
        source = f"{file}; parameters counted on the meta device"
    return ArchitectureInfo(replace(shape, parameters=counted), source)
