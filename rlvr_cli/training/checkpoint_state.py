"""The training state in a checkpoint, without pickles: optimizer, schedule, random states, rollout buffer."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

# The folder of the training state in a checkpoint.
FOLDER = "trainer"
OPTIMIZER = "optimizer"
SCHEDULER = "scheduler.json"
PROCESS = "process-{rank}.safetensors"
COUNTERS = "counters.json"


def save_optimizer(folder: Path, state_dict: dict[str, Any], name: str = OPTIMIZER) -> None:
    """Write ``torch.optim.Optimizer.state_dict()``: tensors as safetensors, hyper-parameters as JSON."""
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, dict[str, Any]] = {}
    for index, entries in state_dict["state"].items():
        for entry, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{entry}"] = value.detach().contiguous().cpu()
            else:
                scalars.setdefault(str(index), {})[entry] = value
    safetensors.torch.save_file(tensors, folder / f"{name}.safetensors")
    groups = {"param_groups": state_dict["param_groups"], "scalars": scalars}
    (folder / f"{name}.json").write_text(json.dumps(groups, indent=2), encoding="utf-8")


def load_optimizer(folder: Path, name: str = OPTIMIZER) -> dict[str, Any]:
    """Read the files of :func:`save_optimizer`."""
    groups = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    state: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in groups["scalars"].items()}
    for key, tensor in safetensors.torch.load_file(folder / f"{name}.safetensors").items():
        index, entry = key.split(".", 1)
        state.setdefault(int(index), {})[entry] = tensor
    for group in groups["param_groups"]:
        if isinstance(group.get("betas"), list):
            group["betas"] = tuple(group["betas"])
    return {"state": dict(sorted(state.items())), "param_groups": groups["param_groups"]}


def random_states() -> dict[str, Tensor]:
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *internal], dtype=torch.int64),
        "python.gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
        "numpy.position": torch.tensor([position, has_gauss], dtype=torch.int64),
        "numpy.gauss": torch.tensor([cached], dtype=torch.float64),
    }
    assert kind == "MT19937"
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["torch"])
    version, *internal = states["python"].tolist()
    gauss = states["python.gauss"].tolist()
    random.setstate((version, tuple(internal), gauss[0] if gauss else None))
    position, has_gauss = states["numpy.position"].tolist()
    keys = states["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, position, has_gauss, states["numpy.gauss"].item()))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def pack_process(buffer: Sequence[dict[str, Tensor]]) -> bytes:
    """Serialize the random states and rollout buffer as safetensors."""
    tensors = {f"random.{name}": value for name, value in random_states().items()}
    for index, rows in enumerate(buffer):
        tensors |= {f"buffer.{index}.{key}": value.detach().cpu().clone() for key, value in rows.items()}
    return safetensors.torch.save(tensors)


def unpack_process(path: Path) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """Read the random states and rollout buffer of :func:`pack_process`."""
    states: dict[str, Tensor] = {}
    buffer: dict[int, dict[str, Tensor]] = {}
    for key, tensor in safetensors.torch.load_file(path).items():
        kind, rest = key.split(".", 1)
        if kind == "random":
            states[rest] = tensor
        else:
            index, name = rest.split(".", 1)
            buffer.setdefault(int(index), {})[name] = tensor
    return states, [buffer[index] for index in sorted(buffer)]
