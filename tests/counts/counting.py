"""What an update computes: positions through the model's layers, positions whose logits are made, FLOPs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.peers import Clocked, Place, our_trainer, shape, their_trainer
from benchmarks.scripted import Rollout, Script
from rlvr_cli.methods.method import Method

# No other dimension has this size, so a matrix product that makes logits is known by it.
VOCABULARY = 197
CONFIG = {"kind": "qwen3", "vocabulary": VOCABULARY, "hidden": 32, "layers": 2, "heads": 2, "kv_heads": 2}
PLACE = Place()


@dataclass
class Counted:
    """Of one rollout's updates.

    Attributes:
        with_gradient, without_gradient, reference: positions (padding included) through the layers of the policy, to
            train on or to look at, and of the reference policy.
        logits: positions whose logits were computed, each time that they were.
        flops: of matrix products.
    """

    with_gradient: int = 0
    without_gradient: int = 0
    reference: int = 0
    logits: int = 0
    flops: int = 0


class _Logits(TorchDispatchMode):
    """Counts positions in the results of matrix products that are logits."""

    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self.counted = counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
        # The weight's own gradient has the vocabulary and the hidden size.
        if func in products and result.shape[-1] == VOCABULARY and result.shape[-2] != CONFIG["hidden"]:
            self.counted.logits += result.numel() // VOCABULARY
        return result


@contextmanager
def _layers_watched(trainer: Clocked, counted: Counted) -> Iterator[None]:
    """Counts the positions that go through the first layer of the policy and of its reference."""

    def watch(model: Any, reference: bool) -> Any:
        def see(layer: Any, args: Any, kwargs: Any) -> None:
            hidden = args[0] if args else kwargs["hidden_states"]
            kind = "reference" if reference else "with_gradient" if torch.is_grad_enabled() else "without_gradient"
            setattr(counted, kind, getattr(counted, kind) + hidden.shape[0] * hidden.shape[1])

        return model.model.layers[0].register_forward_pre_hook(see, with_kwargs=True)

    handles = [watch(trainer.model, reference=False)]
    if trainer.ref_model is not None:
        handles.append(watch(trainer.ref_model, reference=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def counted(trainer: Clocked) -> Counted:
    """Train on the rollout once and count."""
    found = Counted()
    with _layers_watched(trainer, found), _Logits(found):
        found.flops = trainer.update_flops()
    return found


def model() -> Any:
    return PLACE.model(shape(**CONFIG, feed_forward=64))


def script(rollout: Rollout) -> Script:
    return Script(rollout, VOCABULARY)


def ours(folder: Path, rollout: Rollout, method: Method, **options: Any) -> Counted:
    return counted(our_trainer(folder, model(), rollout, script(rollout), PLACE, method, **options))


def theirs(folder: Path, rollout: Rollout, passes: int = 1) -> Counted:
    return counted(their_trainer(folder, model(), rollout, script(rollout), PLACE, passes))
