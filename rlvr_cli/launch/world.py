"""The rank of this process, and collective operations before the trainer exists."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from rlvr_cli.core.errors import UserError

T = TypeVar("T")

# For hanging ranks; torchrun detects dead ones at once. Collective operations wait while a rank samples, saves or
# downloads.
TIMEOUT = datetime.timedelta(hours=1)


class PeerFailed(Exception):
    """Rank 0 has failed; it reports the cause."""


@dataclass(frozen=True)
class World:
    """The rank of this process: ``rank`` over all nodes, ``local_rank`` on this one, both from 0."""

    rank: int = 0
    processes: int = 1
    local_rank: int = 0
    local_processes: int = 1

    @property
    def main(self) -> bool:
        return self.rank == 0

    def join(self, *, cpu: bool) -> None:
        """Join the trainer's process group: gloo on CPUs, else NCCL."""
        if self.processes > 1:
            from accelerate import PartialState

            PartialState(cpu=cpu, timeout=TIMEOUT)

    def run_on_main(self, make: Callable[[], T]) -> T:
        """Broadcast the result of ``make`` on rank 0. Raises its error there, and PeerFailed in the others."""
        if self.processes == 1:
            return make()
        from accelerate.utils import broadcast_object_list

        if self.main:
            try:
                result = make()
            except BaseException:
                broadcast_object_list([(False, None)])
                raise
            broadcast_object_list([(True, result)])
            return result
        received: list[Any] = [None]
        broadcast_object_list(received)
        success, value = received[0]
        if not success:
            raise PeerFailed("rank 0 failed")
        return value  # type: ignore[no-any-return]

    def gather(self, items: list[T]) -> list[T]:
        """Return the items of all ranks in rank order; a collective operation."""
        if self.processes == 1:
            return items
        from accelerate.utils import gather_object

        return gather_object(items)  # type: ignore[no-any-return]

    @contextmanager
    def local_main_first(self) -> Iterator[None]:
        """Run the block in the first rank of each node before the others, which reuse its downloads."""
        if self.processes == 1:
            yield
            return
        from accelerate import PartialState

        with PartialState().local_main_process_first():
            yield


ALONE = World()


def world_of_group() -> World:
    from accelerate import PartialState

    group = PartialState()
    return World(rank=group.process_index, processes=group.num_processes)


def world_of_environment() -> World:
    """Read the rank set by torchrun, accelerate or srun; ALONE without one. Raises UserError if inconsistent."""
    processes = read_environment_int("WORLD_SIZE", 1)
    if processes <= 1:
        return ALONE
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise UserError(
            f"WORLD_SIZE={processes}: {', '.join(missing)} must be set too. Start with torchrun, or unset WORLD_SIZE "
            "and use --processes."
        )
    world = World(
        rank=read_environment_int("RANK", 0),
        processes=processes,
        local_rank=read_environment_int("LOCAL_RANK", 0),
        local_processes=read_environment_int("LOCAL_WORLD_SIZE", 1),
    )
    if not (0 <= world.rank < processes and 0 <= world.local_rank < world.local_processes):
        raise UserError(
            f"RANK={world.rank} of WORLD_SIZE={processes}, LOCAL_RANK={world.local_rank} of LOCAL_WORLD_SIZE="
            f"{world.local_processes}: ranks must be from 0 to the number of processes - 1."
        )
    return world


def read_environment_int(name: str, default: int) -> int:
    """Read an integer from the environment. Raises UserError for anything else."""
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise UserError(f"environment variable {name} must be a whole number; got {text!r}.") from None
