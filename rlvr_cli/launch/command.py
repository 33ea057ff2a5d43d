"""Plan and check the processes of this node before they are started."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.config.launch import LaunchConfig
from rlvr_cli.core.errors import UserError
from rlvr_cli.launch.deepspeed_config import is_sharded
from rlvr_cli.launch.world import environment_number
from rlvr_cli.runs.environment import usable_cores

WORKER = "rlvr_cli.training.worker"
# Environment variable with the launch's temporary folder.
FOLDER = "RLVR_LAUNCH"
PORTS = range(20_000, 32_000)
PACKAGES = str(Path(__file__).parents[2])


@dataclass(frozen=True)
class Node:
    """This node of a launch.

    Attributes:
        processes: of the whole launch; ``local`` of them on this node.
        number: of this node, from 0 to ``nodes`` - 1.
        address, port: of rank 0.
        gpus: visible on this node; 0 = the processes compute on the CPU.
    """

    processes: int
    local: int
    nodes: int
    number: int
    address: str
    port: int
    gpus: int

    @property
    def ranks(self) -> range:
        return range(self.number * self.local, (self.number + 1) * self.local)


def needs_launcher(launch: LaunchConfig) -> bool:
    """Return whether the training runs in child processes."""
    return launch.processes > 1 or is_sharded(launch)


def check_alone(launch: LaunchConfig) -> None:
    """Raise UserError for several nodes (NNODES) with a single process."""
    problems: list[str] = []
    if (nodes := environment_number("NNODES", 1)) > 1:
        problems.append(
            f"NNODES={nodes}, and launch.processes=1: each machine would start its own run. Use --processes, "
            "counted over all machines, or unset NNODES."
        )
    if problems:
        raise UserError(problems)


def plan_node(launch: LaunchConfig) -> tuple[Node, list[str]]:
    """Return the processes of this node, and warnings.

    NNODES and NODE_RANK are the number of nodes and the index of this one; MASTER_ADDR and MASTER_PORT the address of
    rank 0. Raises UserError with every problem.
    """
    problems: list[str] = []
    if sys.platform != "linux":
        problems.append(
            f"launch.processes={launch.processes}: several processes need Linux, and this is {sys.platform}. "
            "Set launch.processes=1."
        )
    nodes, number = (environment_number(name, default) for name, default in (("NNODES", 1), ("NODE_RANK", 0)))
    if nodes > 1:
        problems += [
            f"NNODES={nodes}: {name} must be set too, to {meaning}."
            for name, meaning in (
                ("NODE_RANK", "this machine's number, from 0"),
                ("MASTER_ADDR", "the first machine's address"),
                ("MASTER_PORT", "a free port of the first machine"),
            )
            if not os.environ.get(name)
        ]
    if nodes < 1 or not 0 <= number < max(nodes, 1):
        problems.append(f"NNODES={nodes}, NODE_RANK={number}: machines are counted from 0 to NNODES - 1.")
        nodes, number = 1, 0
    processes = launch.processes
    if processes % nodes:
        below = processes // nodes * nodes
        either = " or ".join(str(count) for count in (below, below + nodes) if count)
        problems.append(
            f"launch.processes={processes}: NNODES={nodes} machines cannot share them equally. Nearest valid: {either}."
        )
    local = max(1, processes // nodes)
    gpus, cores = visible_gpus(), usable_cores()
    warnings = []
    if gpus and local > gpus:
        fits = gpus * nodes
        problems.append(
            f"launch.processes={processes}: {local} processes on this machine, and {gpus} "
            f"{'GPU is' if gpus == 1 else 'GPUs are'} visible. At most one process a GPU: --processes {fits} or fewer "
            "(CUDA_VISIBLE_DEVICES sets which are visible)."
        )
    if not gpus and local > cores:
        warnings.append(
            f"warning: {local} processes on {cores} CPU core{'' if cores == 1 else 's'} (no GPU is visible): they "
            "take turns, so this is slower than fewer processes."
        )
    tasks = environment_number("SLURM_STEP_NUM_TASKS", 1)
    if nodes == 1 and tasks > 1:
        warnings.append(
            f"warning: srun started {tasks} tasks of this command, and NNODES is not set: each starts its own run "
            f"with {processes} processes. For one run start one task a machine, with NNODES and NODE_RANK."
        )
    port = environment_number("MASTER_PORT", 0) if nodes > 1 else 0
    if problems:
        raise UserError(problems)
    address = os.environ.get("MASTER_ADDR", "127.0.0.1") if nodes > 1 else "127.0.0.1"
    return Node(processes, local, nodes, number, address, port or free_port(), gpus), warnings


def environment(node: Node, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the ranks' environment: this process's without the variables of other launchers, and ``extra``."""
    ours = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    # accelerate's settings, which the run's configuration replaces.
    ours = {name: value for name, value in ours.items() if not name.startswith(("ACCELERATE_", "FSDP_"))}
    paths = os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH", "")]))
    ours |= {"PYTHONPATH": paths}
    # torchrun sets it to 1 with a long warning; each process sets its threads itself.
    ours.setdefault("OMP_NUM_THREADS", "1")
    if not node.gpus:
        ours["ACCELERATE_USE_CPU"] = "true"
    return ours | dict(extra)


def visible_gpus() -> int:
    """Count the GPUs that torch sees, in a child process if there may be any, so that this one need not load torch."""
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        return 0
    code = "import torch; print(torch.cuda.device_count())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    try:
        return int(result.stdout.split()[-1])
    except (IndexError, ValueError):
        last = result.stderr.strip().splitlines()[-1:] or ["no answer"]
        raise UserError(f"the GPUs of this machine cannot be counted: {last[0]}") from None


def free_port() -> int:
    """Return a free port of this machine.

    Not an ephemeral port: the launcher binds it seconds later, and a connection could take such a port first.
    """
    for port in random.Random().sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise UserError(f"no port from {PORTS[0]} to {PORTS[-1]} is free on this machine for the processes to rendezvous.")
