"""What each worker has to itself, cores and GPUs of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rlvr_cli.config.launch import SlurmConfig
from rlvr_cli.core.errors import UserError
from rlvr_cli.launch.command import visible_gpus
from rlvr_cli.runs.environment import usable_cores


@dataclass(frozen=True)
class Slot:
    """One worker's share: numbers of cores, names of GPUs; None = shared with everyone."""

    cores: tuple[int, ...] | None = None
    gpus: tuple[str, ...] | None = None

    def environment(self) -> dict[str, str]:
        """The variables that keep a process to the slot's GPUs."""
        return {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}


def slots(wanted: int | None, each: Mapping[str, int | None]) -> list[Slot]:
    """The slots of ``wanted`` workers; None = as many as fit, or one where nothing is said of cores and GPUs.

    Raises UserError when the machine has not so many.
    """
    cores, gpus = each.get("cores"), each.get("gpus")
    own_cores = _cores() if cores else []
    own_gpus = _gpus() if gpus else []
    room = [len(own_cores) // cores] if cores else []
    room += [len(own_gpus) // gpus] if gpus else []
    number = wanted or min(room, default=1)
    problems = [
        f"slots: {number or 1} worker{'s' if number > 1 else ''} of {size} {what}{'s' if size > 1 else ''} each need "
        f"{(number or 1) * size}, and this machine has {len(own)}. At most {len(own) // size} fit (--workers)."
        for what, size, own in (("core", cores or 0, own_cores), ("GPU", gpus or 0, own_gpus))
        if size and (number or 1) * size > len(own)
    ]
    if problems:
        raise UserError(problems)
    return [
        Slot(
            tuple(own_cores[cores * place : cores * (place + 1)]) if cores else None,
            None if gpus is None else tuple(own_gpus[gpus * place : gpus * (place + 1)]),
        )
        for place in range(number)
    ]


def with_slots(section: SlurmConfig, each: Mapping[str, int | None]) -> SlurmConfig:
    """What the job of a trial asks for: its section `slurm`, with a slot's cores and GPUs on each of its machines."""
    keys = {"cpus_per_task": each.get("cores"), "gpus_per_node": each.get("gpus")}
    return section.model_copy(update={key: value for key, value in keys.items() if value is not None})


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(usable_cores()))


def _gpus() -> list[str]:
    """The GPUs by the names that CUDA_VISIBLE_DEVICES gives them, else by their numbers."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[: visible_gpus()] if named else [str(number) for number in range(visible_gpus())]
