"""Disable a model's dropout during updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import PreTrainedConfig

# A module or config, its attribute, and the dropout probability in train mode.
Dropout = tuple[Any, str, float]


def find_dropouts(model: nn.Module) -> list[Dropout]:
    """Return every active dropout of ``model``: dropout layers, and probabilities in modules and configs.

    Adapters are excluded: their dropout has its own key, 0 by default.
    """
    adapters: set[int] = set()
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            adapters.add(id(layer))
            children = (child for name, child in layer.named_children() if name != "base_layer")
            adapters |= {id(module) for child in children for module in child.modules()}
    holders: dict[int, Any] = {}
    for module in model.modules():
        if id(module) not in adapters:
            holders[id(module)] = module
            config = getattr(module, "config", None)
            # Some layers read the config in every forward pass.
            if isinstance(config, PreTrainedConfig):
                holders[id(config)] = config
    return [
        (holder, name, value)
        for holder in holders.values()
        for name, value in vars(holder).items()
        if isinstance(value, float) and 0.0 < value <= 1.0 and _is_dropout(holder, name)
    ]


def _is_dropout(holder: Any, name: str) -> bool:
    return "drop" in name or (name == "p" and "Dropout" in type(holder).__name__)


@contextmanager
def disable_dropouts(dropped: Sequence[Dropout]) -> Iterator[None]:
    """Disable the dropouts inside the context."""
    for holder, name, _ in dropped:
        setattr(holder, name, 0.0)
    try:
        yield
    finally:
        for holder, name, value in dropped:
            setattr(holder, name, value)
