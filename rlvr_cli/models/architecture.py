"""The shape of a decoder-only transformer and its parameters, from a preset or config.json, without its weights."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import preset_document
from rlvr_cli.core.files import local_path
from rlvr_cli.models.sampling.memory import kv_bytes
from rlvr_cli.models.source import (
    PRESETS,
    base_of,
    connection_problem,
    holds_adapter,
    hub_presets,
    is_cached,
    is_offline,
)

_QKV_BIAS = {"qwen2": True, "qwen3": False, "llama": False}


@dataclass(frozen=True)
class Architecture:
    """A stack of blocks of attention (grouped queries, rotary positions) and a gated feed-forward network.

    Attributes:
        family: config.json's ``model_type``.
        hidden, intermediate: width of the residual stream and of the feed-forward network.
        heads, kv_heads, head_dim: query heads, key and value heads, and the width of each.
        tied: the head is the embedding matrix.
        qkv_bias, out_bias, mlp_bias: biases of the query, key and value projections, of the output projection, and of
            the feed-forward network.
        qk_norm: a norm on queries and on keys (one weight of head_dim each a block, Qwen3).
        positions: the longest sequence; None where config.json says nothing.
        counted: the number of parameters, where it was counted and not worked out: the family is not known.
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
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    positions: int | None = None
    counted: int | None = None

    @property
    def embedding(self) -> int:
        """Parameters of the embedding matrix, and of a head of its own."""
        return self.vocabulary * self.hidden

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of each linear layer of a block."""
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
    def block(self) -> int:
        """Parameters of one block: linear layers, their biases, two norms, and the norms of queries and keys."""
        biased = {
            **dict.fromkeys(("q_proj", "k_proj", "v_proj"), self.qkv_bias),
            "o_proj": self.out_bias,
            **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), self.mlp_bias),
        }
        linear = sum(
            inputs * outputs + outputs * biased[name] for name, (inputs, outputs) in self.linear_shapes.items()
        )
        return linear + 2 * self.hidden + 2 * self.head_dim * self.qk_norm

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        if self.counted is not None:
            return self.counted
        return self.embedding * (1 if self.tied else 2) + self.layers * self.block + self.hidden

    @property
    def outside_embedding(self) -> int:
        """Parameters without the embedding and the head."""
        return self.parameters - self.embedding * (1 if self.tied else 2)

    @property
    def linear_parameters(self) -> int:
        """Weights of the blocks' linear layers: what QLoRA quantizes."""
        return self.linear_parameters_of(None)

    def linear_parameters_of(self, targets: Collection[str] | None) -> int:
        """Weights of the blocks' linear layers of these names; None = of all."""
        shapes = [shape for name, shape in self.linear_shapes.items() if targets is None or name in targets]
        return self.layers * sum(inputs * outputs for inputs, outputs in shapes)

    def adapter_parameters(self, rank: int, targets: Collection[str] | None = None) -> int:
        """Parameters of low-rank adapters: rank x (inputs + outputs) for each adapted layer (LoRA, arXiv:2106.09685).

        Args:
            targets: names of linear layers; None = every one of the blocks.
        """
        shapes = [shape for name, shape in self.linear_shapes.items() if targets is None or name in targets]
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in shapes)

    def kv_bytes_per_token(self, element: int) -> int:
        """Bytes of keys and values of one token, ``element`` bytes each number."""
        return kv_bytes(self.layers, self.kv_heads, self.head_dim, element)


def from_config(config: Mapping[str, Any]) -> Architecture | None:
    """The architecture that config.json describes; None where its family's parameters cannot be worked out.

    Known are Qwen2 (also Qwen2.5 and what was distilled into it), Qwen3 and Llama.
    """
    family = config.get("model_type")
    if family not in _QKV_BIAS:
        return None
    return _shape(config, str(family), None)


def counted(config: Mapping[str, Any], parameters: int) -> Architecture | None:
    """The shape of any other decoder with a number of parameters that was counted; None where it lacks the fields."""
    try:
        return _shape(config, str(config.get("model_type")), parameters)
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def _shape(config: Mapping[str, Any], family: str, parameters: int | None) -> Architecture:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    biased = bool(config.get("attention_bias"))
    return Architecture(
        family=family,
        hidden=hidden,
        intermediate=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        # Qwen3's class has 128 where config.json is silent.
        head_dim=int(config.get("head_dim") or (128 if family == "qwen3" else hidden // heads)),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=_QKV_BIAS.get(family, False) or biased,
        # In Llama and Qwen3 attention_bias is that of all four projections; Qwen2 has no such option.
        out_bias=biased and family != "qwen2",
        mlp_bias=bool(config.get("mlp_bias")) and family == "llama",
        qk_norm=family == "qwen3",
        positions=config.get("max_position_embeddings"),
        counted=parameters,
    )


def parameters_of(model: Any) -> int:
    """The parameters of a loaded model as :func:`from_config` counts them, adapters left out."""
    described = from_config(model.config.to_dict())
    return described.parameters if described is not None else int(model.num_parameters())


@dataclass(frozen=True)
class FoundArchitecture:
    """A model's architecture and where its numbers come from, or None and why it is not known."""

    architecture: Architecture | None
    source: str


def find_architecture(name: str, revision: str | None = None, *, download: bool = True) -> FoundArchitecture:
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
    return FoundArchitecture(None, f"{hub_id} is neither a folder nor in the local cache, and the hub is not asked")


def _from_hub(hub_id: str, revision: str | None) -> FoundArchitecture:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import hf_hub_download

    try:
        return _read(Path(hf_hub_download(hub_id, "config.json", revision=revision)))
    except (OSError, ValueError) as error:
        return FoundArchitecture(None, f"{hub_id}: its config.json cannot be had ({str(error).splitlines()[0]})")


def _read(file: Path) -> FoundArchitecture:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return FoundArchitecture(None, f"{file}: {error}")
    if not isinstance(config, dict):
        return FoundArchitecture(None, f"{file}: not a JSON object")
    return _described(config, str(file), file.parent)


def _described(config: Mapping[str, Any], source: str, folder: Path | None = None) -> FoundArchitecture:
    try:
        found = from_config(config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        return FoundArchitecture(None, f"{source}: a size is missing or no number ({error!r})")
    if found is not None:
        return FoundArchitecture(found, source)
    family = config.get("model_type")
    if folder is None:
        return FoundArchitecture(None, f"{source}: the family {family} is not known")
    return _on_the_meta_device(config, source, folder)


def _on_the_meta_device(config: Mapping[str, Any], source: str, folder: Path) -> FoundArchitecture:
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
        return FoundArchitecture(None, f"{source}: transformers cannot build the family {family} ({reason})")
    found = counted(config, model.num_parameters())
    if found is None:
        return FoundArchitecture(None, f"{source}: the family {family} names its sizes in its own way")
    return FoundArchitecture(
        found, f"{source}; parameters of the family {family} counted on the meta device, blocks assumed alike"
    )
