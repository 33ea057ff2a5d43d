"""Jobs in processes of their own: failures are reported, one that is killed takes no other with it, signals end all."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from rlvr_cli.core.errors import RunError
from rlvr_cli.ledger.jobs import Job, Stopped, carry_out
from rlvr_cli.sweeps.slots import Slot

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def write(path: str, text: str = "") -> None:
    print("some library says so")
    Path(path).write_text(text or f"{os.getpid()} {os.environ['OMP_NUM_THREADS']} {len(os.sched_getaffinity(0))}")


def fail(said: str) -> None:
    raise RunError(said)


def break_down() -> None:
    raise KeyError("x")


def be_killed(path: str, times: int) -> None:
    """Killed as often as that, and then done."""
    with Path(path).open("a") as file:
        file.write("x")
    if len(Path(path).read_text()) <= times:
        os.kill(os.getpid(), signal.SIGKILL)


def sleep() -> None:
    time.sleep(600)


def job(name: str, **arguments: object) -> Job:
    return Job(name, f"{__name__}:{name}", arguments)


def run(jobs: list[Job], folder: Path, console: Console | None = None) -> list[str | None]:
    slots = [Slot((CORES[0],)), Slot((CORES[-1],))]
    return carry_out(jobs, slots, folder / "log.txt", "jobs", console or Console(file=io.StringIO()))


def test_each_job_ends_for_itself(tmp_path: Path) -> None:
    out = io.StringIO()
    jobs = [
        job("be_killed", path=str(tmp_path / "twice"), times=2),
        job("be_killed", path=str(tmp_path / "once"), times=1),
        job("fail", said="two\nlines"),
        job("break_down"),
        *(job("write", path=str(tmp_path / f"{number}")) for number in range(4)),
    ]
    assert run(jobs, tmp_path, Console(file=out)) == [
        "its process was ended by SIGKILL, twice (out of memory?)",
        None,
        "two lines",
        "a bug in rlvr: KeyError: 'x'",
        *[None] * 4,
    ]
    written = [(tmp_path / f"{number}").read_text().split() for number in range(4)]
    assert {one[0] for one in written} != {str(os.getpid())} and all(one[1:] == ["1", "1"] for one in written)
    log = (tmp_path / "log.txt").read_text()
    assert "KeyError: 'x'" in log and log.count("some library says so") == 4
    assert "jobs: 8 to do" in out.getvalue() and "jobs: 8 of 8 in" in out.getvalue()
    assert run([], tmp_path) == []


def test_a_signal_ends_all_processes(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(Stopped) as stopped:
        run([job("sleep"), job("sleep"), job("sleep")], tmp_path)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert not psutil.wait_procs(left, timeout=60)[1]
