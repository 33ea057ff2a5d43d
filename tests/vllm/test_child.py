"""The server that rlvr starts lives no longer than rlvr, and says why it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlvr_cli.core.errors import RunError
from rlvr_cli.training.vllm import child as children
from rlvr_cli.training.vllm.child import Child

# Starts a process of its own, as vLLM does, tells both numbers and waits.
SERVER = """
import os, subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print(os.getpid(), other.pid, flush=True)
time.sleep(100)
"""
TRAINER = """
import os, sys, time
from pathlib import Path
from rlvr_cli.training.vllm.child import Child
Child([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3]), os.environ)
print("started", flush=True)
time.sleep(100)
"""


def child(folder: Path, code: str) -> Child:
    (folder / "weights").mkdir()
    return Child([sys.executable, "-c", code], folder / "vllm.log", folder / "weights", os.environ)


def numbers(output: Path) -> list[int]:
    """The numbers of the processes that SERVER told."""
    return [int(word) for word in until(lambda: output.exists() and output.read_text()).split()]


def until(ready, seconds: float = 20.0):  # type: ignore[no-untyped-def]
    last = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < last
        time.sleep(0.05)
    return found


def gone(processes: list[int]) -> bool:
    return not any(alive(pid) for pid in processes)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_it_is_ended_with_what_it_started(tmp_path: Path) -> None:
    server = child(tmp_path, SERVER)
    processes = numbers(server.output)
    server.check()
    server.end()
    assert gone(processes) and not (tmp_path / "weights").exists()


def test_it_ends_when_its_own_first_process_is_killed(tmp_path: Path) -> None:
    server = child(tmp_path, SERVER)
    processes = numbers(server.output)
    os.kill(processes[0], signal.SIGKILL)
    until(server.failure)
    assert "killed by signal 9" in str(server.failure())
    assert gone(processes)
    server.end()


def test_it_ends_with_a_trainer_that_is_killed(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, SERVER, str(tmp_path / "vllm.log"), str(weights)])
    processes = numbers(tmp_path / "vllm.log")
    trainer.kill()
    trainer.wait()
    until(lambda: gone(processes))
    until(lambda: not weights.exists())


def test_it_says_why_it_ended(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_text("RuntimeError: of the start before\n")
    lines = [
        "(APIServer pid=7) INFO 11-21 19:25:35 [api_utils.py:286] non-default args: {}",
        "(EngineCore pid=9) ERROR 11-21 19:25:43 [core.py:129] ValueError: Free memory on device is less than desired.",
        "(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    echo = "(APIServer pid=7) ERROR 11-21 19:25:44 [v.py:54] EngineDeadError: EngineCore encountered an issue.\n"
    said = f"print({chr(10).join(lines)!r}); print({echo!r} * 99999); print('warnings.warn(')"
    server = child(tmp_path, f"import sys; {said}; sys.exit(3)")
    with pytest.raises(RunError, match=r"exit code 3\): ValueError: Free memory on device is less than desired\. Its"):
        server.wait_until(lambda: False, 20.0, lambda line: None)
    server.end()


def test_of_a_progress_bar_the_newest_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an error that is printed after an unfinished one is found."""
    monkeypatch.setattr(children, "SECONDS_BETWEEN_NOTES", 0.0)
    bar = "\\rLoading:  0%\\rLoading: 50%"
    server = child(tmp_path, f"import time; print('{bar}', end='', flush=True); time.sleep(100)")
    said: list[str] = []
    server.wait_until(lambda: bool(said) and said[-1].endswith(" s: Loading: 50%"), 20.0, said.append)
    server.end()
    with server.output.open("a") as output:
        output.write("\rValueError: it does not fit\nit ended\n")
    assert server.last_error() == "ValueError: it does not fit"


def test_waiting_has_an_end(tmp_path: Path) -> None:
    server = child(tmp_path, SERVER)
    with pytest.raises(RunError, match=r"did not answer within 0\.5 s \(rollout\.vllm\.startup_timeout\)"):
        server.wait_until(lambda: False, 0.5, lambda line: None)
    server.end()
