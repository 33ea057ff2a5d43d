"""What the parent makes of its processes' ends; launcher and ranks are small programs of ours."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError
from rlvr_cli.launch import supervise
from rlvr_cli.runs.folder import RunDir
from tests.training.processes import gone

# As torchrun does: two ranks, each in a session of its own, and a report of those that fail.
LAUNCHER = """
import os, subprocess, sys, time
ranks = [
    subprocess.Popen([sys.executable, "-c", sys.argv[1 + rank], str(rank)], start_new_session=True) for rank in (0, 1)
]
while all(rank.poll() is None for rank in ranks):
    time.sleep(0.01)
time.sleep(0.2)
for number, rank in enumerate(ranks):
    if rank.poll():
        print(f"failed (exitcode: {rank.returncode}) local_rank: {number} (pid: 1)", flush=True)
    else:
        rank.kill()
sys.exit(1)
"""
RANK = """
import os, signal, subprocess, sys, time
from pathlib import Path
from rlvr_cli.launch.link import FOLDER, Link
from rlvr_cli.launch.world import World
rank = int(sys.argv[1])
link = Link(Path(os.environ[FOLDER]), World(rank, 2, rank, 2))
"""
WAITS = f"{RANK}time.sleep(60)"


def ending(monkeypatch: pytest.MonkeyPatch, launcher: str, *ranks: str) -> tuple[str, str]:
    """What the user sees of a launch that fails, and what was shown before."""
    monkeypatch.setattr(supervise, "launcher_command", lambda *_: [sys.executable, "-c", launcher, *ranks])
    shown = io.StringIO()
    config = load_config([], overrides=["launch.processes=2"])
    with pytest.raises(RunError) as failed:
        supervise._supervise(config, {"resume": None}, Console(file=shown))
    return str(failed.value), shown.getvalue()


def test_last_words_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a library that ends the process: what it says is the cause, with or without the end of a line."""
    dies = f"{RANK}os.write(2, b'terminate called'); os.abort()"
    told, shown = ending(monkeypatch, LAUNCHER, WAITS, dies)
    assert told == "rank 1 of 2: killed by SIGABRT" and "[rank 1] terminate called" in shown


def test_the_launcher_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    told, _ = ending(
        monkeypatch, LAUNCHER, f"{RANK}time.sleep(0.5); os.kill(os.getppid(), signal.SIGKILL)" + WAITS, WAITS
    )
    assert told == "rank 0 of 2: its launcher, torchrun: killed by SIGKILL (out of memory?)"


def test_a_process_that_does_not_come_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what the launcher does to the others because of it."""
    told, _ = ending(monkeypatch, LAUNCHER, WAITS, "import time; time.sleep(1); import no_such_package")
    assert told.startswith("rank 1 of 2: it ended while it started: ") and "No module named 'no_such_package'" in told


def test_a_second_ctrl_c_where_nobody_reads_any_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`rlvr train | tee log`: the status is written and the exit code is Ctrl-C's all the same."""

    class Left(Console):
        def print(self, *objects: object, **named: object) -> None:
            if "starting" not in str(objects[0]):
                raise SystemExit(1)

    def press() -> None:
        while not list(tmp_path.iterdir()):
            time.sleep(0.01)
        for _ in range(2):
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)

    ignores = f"{RANK}signal.signal(signal.SIGINT, signal.SIG_IGN); "
    begins = f"{ignores}link.begun(Path('{tmp_path}')); Path('{tmp_path}', 'begun').touch(); time.sleep(60)"
    monkeypatch.setattr(
        supervise, "launcher_command", lambda *_: [sys.executable, "-c", LAUNCHER, begins, f"{ignores}time.sleep(60)"]
    )
    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        supervise._supervise(load_config([], overrides=["launch.processes=2"]), {"resume": None}, Left())
    assert RunDir(tmp_path).read_manifest()["status"] == "interrupted"


def test_helpers_of_a_process_end_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    helper = f"{RANK}pid = subprocess.Popen(['sleep', '60']).pid; Path('{tmp_path}', str(rank)).write_text(str(pid))"
    ending(monkeypatch, LAUNCHER, f"{helper}; time.sleep(60)", f"{helper}; time.sleep(0.5); os._exit(3)")
    for rank in "01":
        pid, end = int((tmp_path / rank).read_text()), time.monotonic() + 30
        while not gone(pid):
            assert time.monotonic() < end, f"a helper of rank {rank} lives on"
            time.sleep(0.05)
