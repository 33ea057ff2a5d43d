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
    """Run ``script``, which makes two gloo processes of itself, in the environment that torchrun would give them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    environment = {**os.environ, **world, "OMP_NUM_THREADS": "1", "PYTHONPATH": "."}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(
        command, cwd=script.parents[2], env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
