"""What a process does with its part of a divided model's state."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from rlvr_cli.training.sharding.fsdp import FullyShardedSharding


def test_a_counter_of_steps_goes_where_the_optimizer_wants_it() -> None:
    """On GPUs AdamW is fused and reads it there; a checkpoint's tensors come from the CPU."""

    def sharding(device: str) -> FullyShardedSharding:
        layer = nn.Linear(2, 3, device=device)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.5, capturable=True)
        return FullyShardedSharding(SimpleNamespace(optimizer=SimpleNamespace(optimizer=optimizer)))

    saved = sharding("cpu")
    optimizer = saved._optimizer()
    optimizer.param_groups[0]["lr"] = 0.25
    entries = ("exp_avg", "exp_avg_sq")
    for parameter in saved._parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(7.0),
            **{name: torch.ones_like(parameter) for name in entries},
        }
    # "meta" stands for a GPU here.
    restored = sharding("meta")
    restored.restore_optimizer_part(saved.optimizer_part())
    found = restored._optimizer()
    assert found.param_groups[0]["lr"] == 0.25 and len(found.state) == 2
    for parameter, state in found.state.items():
        assert {name: value.device.type for name, value in state.items()} == dict.fromkeys(("step", *entries), "meta")
        assert state["exp_avg"].shape == parameter.shape
