"""Slots: the cores and GPUs of this machine that a worker uses exclusively."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rlvr_cli.core.errors import UserError
from rlvr_cli.launch.command import count_visible_gpus
from rlvr_cli.runs.environment import usable_cores


@dataclass(frozen=True)
class Slot:
    """The core numbers and GPU names of a worker; None = all, shared."""

    cores: tuple[int, ...] | None = None
    gpus: tuple[str, ...] | None = None

    def environment(self) -> dict[str, str]:
        return {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}


def allocate_slots(workers: int | None, each: Mapping[str, int | None]) -> list[Slot]:
    """Return ``workers`` slots; None = all that fit, or one without limits. Raises UserError if they do not fit."""
    cores, gpus = each.get("cores"), each.get("gpus")
    all_cores = _available_cores() if cores else []
    all_gpus = _available_gpus() if gpus else []
    fitting = [len(all_cores) // cores] if cores else []
    fitting += [len(all_gpus) // gpus] if gpus else []
    number = workers or min(fitting, default=1)
    problems = [
        f"slots: {number or 1} worker{'s' if number > 1 else ''} of {size} {unit}{'s' if size > 1 else ''} each need "
        f"{(number or 1) * size}, and this machine has {len(total)}. At most {len(total) // size} fit (--workers)."
        for unit, size, total in (("core", cores or 0, all_cores), ("GPU", gpus or 0, all_gpus))
        if size and (number or 1) * size > len(total)
    ]
    if problems:
        raise UserError(problems)
    return [
        Slot(
            tuple(all_cores[cores * index : cores * (index + 1)]) if cores else None,
            None if gpus is None else tuple(all_gpus[gpus * index : gpus * (index + 1)]),
        )
        for index in range(number)
    ]


def _available_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(usable_cores()))


def _available_gpus() -> list[str]:
    """Return the names of the GPUs in CUDA_VISIBLE_DEVICES, else their numbers."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[: count_visible_gpus()] if named else [str(number) for number in range(count_visible_gpus())]
