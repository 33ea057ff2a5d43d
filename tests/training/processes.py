"""Other processes, and signals to this one: real gloo ranks, and SIGTERM at a step."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlvr_cli.training.recorder import Recorder


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


def gone(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def interrupted_after(steps: int) -> Iterator[None]:
    """This process gets SIGTERM when step ``steps`` of a training is recorded; it saves at the end of the next one."""
    record = Recorder.on_step_end

    def recording(self: Recorder, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        record(self, args, state, control, **kwargs)
        if state.global_step == steps:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Recorder, "on_step_end", recording)
        yield
