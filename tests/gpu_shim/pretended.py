"""Run rlvr on a pretended GPU: ``python pretended.py DEVICE.so SEEN.json "train --method grpo" ...``, in order.

``DEVICE.so`` is device.cpp, compiled; it has to be loaded before torch. What torch's Python side asks of the CUDA
runtime is answered here: one GPU with 80 GiB that has bfloat16. ``SEEN.json`` gets, for each training, the devices and
number formats of the weights trained, of those frozen and of those that were sampled from.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GIB = 2**30


def install(library: Path) -> None:
    """Give this process the pretended GPU. torch must not have been imported yet."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    import torch

    properties = SimpleNamespace(
        name="Pretended GPU", total_memory=80 * GIB, major=9, minor=0, multi_processor_count=1, gcnArchName=""
    )
    answers: dict[str, Any] = {
        "_lazy_init": None,
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "is_bf16_supported": True,
        "get_device_name": properties.name,
        "get_device_capability": (9, 0),
        "get_device_properties": properties,
        "mem_get_info": (80 * GIB, 80 * GIB),
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "initial_seed": 0,
        **dict.fromkeys(("memory_reserved", "memory_allocated", "max_memory_allocated", "max_memory_reserved"), 0),
        **dict.fromkeys(
            ("set_device", "manual_seed", "manual_seed_all", "set_rng_state", "synchronize", "empty_cache")
        ),
        **dict.fromkeys(("reset_peak_memory_stats", "ipc_collect")),
        "device": contextlib.nullcontext(),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *args, _answer=answer, **kwargs: _answer)
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False


def formats(tensors: Iterable[Any]) -> list[str]:
    """Return the different "device dtype" of ``tensors``, sorted."""
    return sorted({f"{tensor.device} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors})


def main() -> None:
    library, output, *commands = sys.argv[1:]
    install(Path(library))
    from rlvr_cli.cli.app import run
    from rlvr_cli.models.sampling.decoder import Decoder
    from rlvr_cli.training.policy_run import PolicyRunTrainer

    seen: list[dict[str, list[str]]] = []
    decoder_made, train = Decoder.__init__, PolicyRunTrainer.train

    def decoder_seen(self: Any, model: Any) -> None:
        decoder_made(self, model)
        seen[-1]["sampled"] = formats([*model.parameters(), self.embedding])

    def train_seen(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = train(self, *args, **kwargs)
        for name, trained in (("trained", True), ("frozen", False)):
            seen[-1][name] = formats(weight for weight in self.model.parameters() if weight.requires_grad is trained)
        return result

    Decoder.__init__, PolicyRunTrainer.train = decoder_seen, train_seen  # type: ignore[method-assign]
    for command in commands:
        seen.append({})
        if code := run(shlex.split(command)):
            sys.exit(code)
    Path(output).write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main()
