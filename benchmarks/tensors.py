"""The most bytes of tensors that live at once on a CPU, as torch's profiler sees every allocation and release."""

from __future__ import annotations

from typing import Any

import torch


def profiled() -> Any:
    """A profiler to run something under, which keeps its allocations."""
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)


def most_bytes(profiler: Any) -> int:
    """The largest growth of the living tensors while ``profiler`` was watching."""
    live = most = 0
    events = profiler.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most
