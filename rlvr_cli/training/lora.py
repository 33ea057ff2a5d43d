"""Low-rank adapters: where they are put, what a checkpoint keeps of them, and the plain model they amount to."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from rlvr_cli.config.method import SFTConfig

ADAPTER = "adapter.safetensors"


def lora_config(method: SFTConfig) -> LoraConfig | None:
    """Adapters on every linear layer but the head, or None where every weight is trained."""
    if method.lora_rank is None:
        return None
    return LoraConfig(
        r=method.lora_rank,
        lora_alpha=method.lora_alpha,
        target_modules="all-linear",
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def adapter_tensors(model: Any) -> dict[str, Tensor]:
    """The adapters' own weights by name: all that training changes."""
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


@torch.no_grad()
def load_adapter(model: Any, tensors: dict[str, Tensor]) -> None:
    """The inverse of :func:`adapter_tensors`."""
    own = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if own.keys() != tensors.keys():
        raise ValueError(f"the adapter has other layers than the model: {sorted(own.keys() ^ tensors.keys())[:3]}")
    for name, weight in own.items():
        weight.copy_(tensors[name])


@contextmanager
def merged(model: Any) -> Iterator[Any]:
    """Inside, the base model of a PEFT model: a plain model whose linear layers hold the adapted weights.

    The layers are replaced and afterwards put back, so that no rounding ever reaches the base weights.
    """
    base = model.get_base_model()
    adapted = {name: layer for name, layer in base.named_modules() if isinstance(layer, LoraLayer)}
    for name, layer in adapted.items():
        base.set_submodule(name, _merged(layer))
    try:
        yield base
    finally:
        for name, layer in adapted.items():
            base.set_submodule(name, layer)


@torch.no_grad()
def _merged(layer: Any) -> nn.Module:
    plain = layer.get_base_layer()
    (adapter,) = layer.active_adapters
    weight = plain.weight + layer.get_delta_weight(adapter).to(plain.weight.dtype)
    # A deep copy that takes the new weight for the old one, and shares the bias.
    known = {id(plain.weight): nn.Parameter(weight, requires_grad=False), id(plain.bias): plain.bias}
    copied: nn.Module = copy.deepcopy(plain, known)
    return copied
