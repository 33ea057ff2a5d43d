"""A signal comes to several processes, or their parent dies: all end together. Ends of ranks: test_torchrun.py."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from rlvr_cli.runs.folder import RunDir
from tests.launch.launches import LONG, finish, manifest, ranks, rows, start, wait_for_steps


def begin(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], Path, dict[int, psutil.Process]]:
    """A run of two processes, a step old."""
    process = start("--processes", "2", f"run.dir={folder}", "run.name=run", *LONG, *arguments)
    wait_for_steps(folder / "run", 1, process)
    return process, folder / "run", ranks(process)


def test_a_signal_saves_all_at_the_same_step(tmp_path: Path) -> None:
    process, run, _ = begin(tmp_path)
    process.send_signal(signal.SIGTERM)
    output = finish(process, 143)
    assert output.count("SIGTERM: saving after this step") == 1
    step = len(rows(run))
    assert f"saved at step {step}; continue with: rlvr train --resume {run}" in output
    assert (run / "checkpoints" / f"step-{step}").exists()
    assert manifest(run)["status"] == "interrupted"


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    process, run, workers = begin(tmp_path)
    for worker in workers.values():
        worker.suspend()  # what is asked of it takes for ever
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert f"stopped without saving; continue with: rlvr train --resume {run}" in finish(process, 130)
    assert manifest(run)["status"] == "interrupted"
    with RunDir(run).lock():
        pass


@pytest.mark.slow
def test_nothing_outlives_its_parent(tmp_path: Path) -> None:
    process, run, workers = begin(tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert {worker.pid for worker in workers.values()} <= {child.pid for child in children}
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    with RunDir(run).lock():
        pass
