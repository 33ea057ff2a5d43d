"""PPO's value head: one linear layer on the policy's last hidden state."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer
from trl import GRPOConfig

from rlvr_cli.methods.method import Method

NAME = "value_head"
HEAD_FILE = f"{NAME}.safetensors"


class ValueHead:
    """The value head of a model, and the hidden states of its latest forward pass.

    The layer is a child module of the model, so that it is moved, wrapped and optimised with it. It is initialised to
    0, and not part of the published model.
    """

    def __init__(self, layer: nn.Linear, *, train_backbone: bool) -> None:
        self.layer, self.train_backbone = layer, train_backbone
        self._hidden: Tensor | None = None

    @classmethod
    def attach(cls, model: Any, *, train_backbone: bool) -> ValueHead:
        """Attach a new head to ``model``; the value loss trains the policy's layers only if ``train_backbone``."""
        parameter = next(model.parameters())
        # Regression in bfloat16 would be limited by rounding.
        dtype = parameter.dtype if parameter.dtype == torch.float64 else torch.float32
        layer = nn.Linear(model.config.hidden_size, 1, device=parameter.device, dtype=dtype)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        setattr(model, NAME, layer)
        head = cls(layer, train_backbone=train_backbone)
        model.base_model.register_forward_hook(head._store_states)
        return head

    def _store_states(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._hidden = output.last_hidden_state

    def latest_states(self, completion_length: int) -> Tensor:
        """Return (B, T, H), the latest pass's states before each of its last T = ``completion_length`` tokens."""
        assert self._hidden is not None
        return self._hidden[:, -completion_length - 1 : -1]

    def values(self, states: Tensor) -> Tensor:
        """Return (B, T) predictions at (B, T, H) hidden states."""
        self._hidden = None
        if not self.train_backbone:
            states = states.detach()
        values: Tensor = self.layer(states.to(self.layer.weight.dtype)).squeeze(-1)
        return values

    def load(self, folder: Path) -> None:
        self.layer.load_state_dict(load_file(folder / HEAD_FILE))

    @contextmanager
    def clip_separately(self, max_norm: float) -> Iterator[None]:
        """Clip the head's gradient to ``max_norm`` separately, and exclude it from clipping inside the context."""
        nn.utils.clip_grad_norm_(self.layer.parameters(), max_norm)
        gradients = [parameter.grad for parameter in self.layer.parameters()]
        for parameter in self.layer.parameters():
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in zip(self.layer.parameters(), gradients, strict=True):
                parameter.grad = gradient

    def move_to_own_group(self, optimizer: Optimizer, learning_rate: float) -> None:
        """Move the head's parameters to a group with another learning rate and without weight decay."""
        head = {id(parameter) for parameter in self.layer.parameters()}
        if any({id(parameter) for parameter in group["params"]} == head for group in optimizer.param_groups):
            return
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in head]
        optimizer.add_param_group({"params": list(self.layer.parameters()), "lr": learning_rate, "weight_decay": 0.0})


def split_value_head(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a state dict into the model's weights and the value head's, without its prefix."""
    prefixes = (f"{NAME}.", f"base_model.model.{NAME}.")  # the latter with adapters (PEFT)
    model = {key: value for key, value in weights.items() if not key.startswith(prefixes)}
    head = {key.rpartition(".")[2]: value for key, value in weights.items() if key.startswith(prefixes)}
    return model, head


def attach_value_head(
    method: Method, model: Any, arguments: GRPOConfig, others: dict[str, Any]
) -> tuple[ValueHead | None, dict[str, Any]]:
    """Attach the value head of ``method``, if any; return it with ``others`` adapted to it. Raises ValueError."""
    if not method.advantage.needs_values:
        return None, others
    if isinstance(model, str):
        raise ValueError(f"method {method.name} attaches a value head: pass the model itself, not {model!r}.")
    if hasattr(model, "peft_config"):
        raise ValueError(
            f"method {method.name} trains a value head, which a PEFT model freezes. Pass its base and peft_config."
        )
    if arguments.use_vllm:
        raise ValueError(f"method {method.name} trains a value head, which vLLM cannot load. Remove use_vllm.")
    if arguments.deepspeed is not None:
        raise ValueError(
            f"method {method.name} trains a value head, whose gradient DeepSpeed would clip with the policy's: it and "
            "deepspeed cannot be combined."
        )
    peft_config = others.get("peft_config")
    if peft_config is not None:
        peft_config = copy.copy(peft_config)
        excluded = peft_config.exclude_modules or []
        peft_config.exclude_modules = [*([excluded] if isinstance(excluded, str) else excluded), NAME]
        others = {**others, "peft_config": peft_config}
    return ValueHead.attach(model, train_backbone=method.critic.backbone), others
