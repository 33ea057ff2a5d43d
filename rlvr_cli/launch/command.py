"""Plan and check the processes of this node."""

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
from rlvr_cli.launch.world import read_environment_int
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
        processes: of the launch; ``local`` of them on this node.
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
    return launch.processes > 1 or is_sharded(launch)


def check_single_process(launch: LaunchConfig) -> None:
    """Raise UserError for several nodes (NNODES) with a single process."""
    if (nodes := read_environment_int("NNODES", 1)) > 1:
        raise UserError(
            f"NNODES={nodes} and launch.processes=1 cannot be combined: each machine would start a separate run. Use "
            "--processes N, counted over all machines, or unset NNODES."
        )


def plan_node(launch: LaunchConfig) -> tuple[Node, list[str]]:
    """Return this node's processes, by torchrun's variables, and warnings. Raises UserError with every problem."""
    problems: list[str] = []
    if sys.platform != "linux":
        problems.append(
            f"launch.processes={launch.processes}: several processes need Linux; this is {sys.platform}. "
            "Set launch.processes=1."
        )
    nodes, number = (read_environment_int(name, default) for name, default in (("NNODES", 1), ("NODE_RANK", 0)))
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
        lower = processes // nodes * nodes
        valid = " or ".join(str(count) for count in (lower, lower + nodes) if count)
        problems.append(f"launch.processes={processes} must be a multiple of NNODES={nodes}. Nearest valid: {valid}.")
    local = max(1, processes // nodes)
    gpus, cores = count_visible_gpus(), usable_cores()
    warnings = []
    if gpus and local > gpus:
        problems.append(
            f"launch.processes={processes}: {local} processes on this machine, and {gpus} "
            f"{'GPU is' if gpus == 1 else 'GPUs are'} visible (CUDA_VISIBLE_DEVICES). Use --processes {gpus * nodes} "
            "or fewer, at most one per GPU."
        )
    if not gpus and local > cores:
        warnings.append(
            f"warning: {local} processes on {cores} CPU core{'' if cores == 1 else 's'} (no GPU is visible) are "
            "slower than fewer processes."
        )
    tasks = read_environment_int("SLURM_STEP_NUM_TASKS", 1)
    if nodes == 1 and tasks > 1:
        warnings.append(
            f"warning: srun started {tasks} tasks of this command without NNODES: each starts a separate run with "
            f"{processes} processes. For a single run start one task per machine, with NNODES and NODE_RANK."
        )
    port = read_environment_int("MASTER_PORT", 0) if nodes > 1 else 0
    if problems:
        raise UserError(problems)
    address = os.environ.get("MASTER_ADDR", "127.0.0.1") if nodes > 1 else "127.0.0.1"
    return Node(processes, local, nodes, number, address, port or find_free_port(), gpus), warnings


def rank_environment(node: Node, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the ranks' environment: this process's without other launchers' variables, and ``extra``."""
    variables = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    # The run's configuration replaces accelerate's settings.
    variables = {name: value for name, value in variables.items() if not name.startswith(("ACCELERATE_", "FSDP_"))}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH", "")]))
    # Avoids torchrun's long warning; each process sets its number of threads.
    variables.setdefault("OMP_NUM_THREADS", "1")
    if not node.gpus:
        variables["ACCELERATE_USE_CPU"] = "true"
    return variables | dict(extra)


def count_visible_gpus() -> int:
    """Count the GPUs that torch sees, in a child process, so that this one need not import torch."""
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        return 0
    code = "import torch; print(torch.cuda.device_count())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    try:
        return int(result.stdout.split()[-1])
    except (IndexError, ValueError):
        last = result.stderr.strip().splitlines()[-1:] or ["no output"]
        raise UserError(f"torch cannot count the GPUs of this machine: {last[0]}") from None


def find_free_port() -> int:
    """Return a free port that is not ephemeral, since a connection could take that before the launcher binds it."""
    for port in random.Random().sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise UserError(f"no port from {PORTS[0]} to {PORTS[-1]} is free on this machine for the processes to rendezvous.")
