"""Other processes, and signals to this one: real gloo ranks, and SIGTERM at a step."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path


def run_as_two(script: Path, *arguments: str) -> None:
    """Run ``script`` in two gloo processes, started as torchrun starts them; both must succeed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {
        "WORLD_SIZE": "2",
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": ".",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            cwd=script.parents[2],
            env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=280)
        assert process.returncode == 0, output.decode()


def interrupt_after(path: Path, steps: int) -> threading.Thread:
    """Send this process SIGTERM once ``steps`` steps are recorded."""

    def watch() -> None:
        while not path.exists() or path.read_bytes().count(b"\n") < steps:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread
