"""A terminal that is closed under a training, as when a connection drops."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

from rlvr_cli.runs.folder import RunDir
from tests.launch.launches import LONG, ROOT


def test_a_closed_terminal_saves(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    process = closed_under(run, *LONG, "checkpoint.every=1000")
    assert process.wait(60) == 129
    manifest = run.read_manifest()
    assert manifest["status"] == "interrupted"
    steps = run.metrics_path.read_text().count("\n")
    assert manifest["step"] == steps and (run.checkpoints_dir / f"step-{steps}").exists()


def take_terminal() -> None:
    """Make standard input the process's terminal; its closing is heard even where the tests run under nohup."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def closed_under(run: RunDir, *arguments: str) -> subprocess.Popen[bytes]:
    """`rlvr train` on a terminal that is closed once it has made a step."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rlvr_cli", "train", *arguments),
            *(f"run.dir={run.path.parent}", f"run.name={run.name}"),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    threading.Thread(target=drain, args=(ours,), daemon=True).start()
    while not (run.metrics_path.exists() and run.metrics_path.read_text().count("\n") > 2):
        assert process.poll() is None
        time.sleep(0.05)
    os.close(ours)
    return process


def drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except OSError:
        pass
