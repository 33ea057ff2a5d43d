"""What the parent makes of its ranks' ends: torchrun is the real one, and the ranks are small programs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.launch import command, torchrun
from rlvr_cli.launch.ranks import OPTIONS, RankFailure, find_root_cause, make_failure, read_failures
from rlvr_cli.launch.stopping import RunEnd
from rlvr_cli.runs.folder import RunDir
from tests.training.processes import gone

ROOT = Path(__file__).parents[2]
WAITS = "time.sleep(60)"
ENDS_WHEN_ASKED = "[time.sleep(0.05) for _ in iter(lambda: stop.signal, signal.SIGTERM)]"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    return run


def launch(monkeypatch: pytest.MonkeyPatch, first: str, second: str, console: Console | None = None) -> RunEnd:
    """Start two ranks, each of which runs its code as soon as both have started, and wait for them."""
    monkeypatch.setattr(command, "WORKER", "tests.launch.rank")
    with tempfile.TemporaryDirectory() as folder:
        meet = (
            f"started = Path({folder!r}); (started / str(world.rank)).touch()\n"
            "while len(list(started.iterdir())) < 2: time.sleep(0.01)\n"
        )
        for rank, code in enumerate((first, second)):
            monkeypatch.setenv(f"CODE_{rank}", meet + code)
        return _launch(console)


def _launch(console: Console | None) -> RunEnd:
    config = load_config([], overrides=["launch.processes=2"])
    return torchrun._launch(config, {"resume": None}, console or Console(file=io.StringIO()))


def starting(run: RunDir, code: str) -> str:
    return f"reports.report_run(Path({str(run.path)!r})); {code}"


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + 30
    while not gone(pid):
        assert time.monotonic() < end, f"{pid} lives on"
        time.sleep(0.05)


def test_a_rank_that_is_killed_without_a_word(monkeypatch: pytest.MonkeyPatch, run: RunDir) -> None:
    """And its helpers, and those of the other rank, end with it; what it and torchrun wrote is in log.txt."""
    helper = "pid = subprocess.Popen(['sleep', '60']).pid; (Path({!r}) / str(world.rank)).write_text(str(pid)); "
    helper = helper.format(str(run.path))
    dies = "os.write(2, b'terminate called'); time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(RunError) as failed:
        launch(monkeypatch, starting(run, helper + ENDS_WHEN_ASKED), helper + dies)
    message = f"rank 1 of 2: killed by SIGKILL (out of memory?). Continue with: rlvr train --resume {run.path}"
    assert str(failed.value) == message == run.read_manifest()["error"]
    log = run.log_path.read_text()
    assert "terminate called" in log and "tests.launch.rank FAILED" in log and message in log
    for rank in "01":
        wait_until_gone(int((run.path / rank).read_text()))


def test_a_mistake_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what the other rank says because of it, though that comes first."""
    wrong = "time.sleep(0.5); raise __import__('rlvr_cli').core.errors.UserError(['no such file', 'nor this'])"
    with pytest.raises(UserError) as failed:
        launch(monkeypatch, "raise RuntimeError('Connection closed by peer')", wrong)
    assert failed.value.problems == ("no such file", "nor this")


def test_a_rank_whose_launcher_ended_while_it_started(tmp_path: Path) -> None:
    """Its parent is another process then."""
    (tmp_path / OPTIONS).write_text(json.dumps({"parent": os.getppid()}))
    environment = {**os.environ, command.FOLDER: str(tmp_path), "CODE_0": WAITS}
    rank = [sys.executable, "-m", "tests.launch.rank"]
    ended = subprocess.run(rank, cwd=ROOT, env=environment, timeout=60, capture_output=True)
    assert ended.returncode == 1 and not ended.stderr and [path.name for path in tmp_path.iterdir()] == [OPTIONS]


def test_a_rank_ends_with_its_launcher(tmp_path: Path) -> None:
    """Killed in the middle of its own work, without having noticed anything."""
    starts = (
        "import json, os, subprocess, sys; from pathlib import Path; "
        f"Path({str(tmp_path / OPTIONS)!r}).write_text(json.dumps({{'parent': os.getpid()}})); "
        "subprocess.run([sys.executable, '-m', 'tests.launch.rank'])"
    )
    environment = {**os.environ, command.FOLDER: str(tmp_path), "CODE_0": WAITS}
    launcher = subprocess.Popen([sys.executable, "-c", starts], cwd=ROOT, env=environment)
    while not (tmp_path / "pid-0.json").exists():
        assert launcher.poll() is None
        time.sleep(0.01)
    (rank,) = psutil.Process(launcher.pid).children()
    launcher.kill()
    launcher.wait()
    wait_until_gone(rank.pid)


def test_which_of_several_failures_is_the_first(tmp_path: Path) -> None:
    """An echo that comes first in time is not the cause; equal messages are told once, by the lowest rank."""
    echo = make_failure(0, RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer"), "")
    own = make_failure(1, RuntimeError("the loss is odd"), "Traceback ...")
    assert (echo.secondary, own.secondary, own.kind, own.text) == (True, False, "bug", "RuntimeError: the loss is odd")
    for failure in (echo, own):
        failure.write(tmp_path)
    assert read_failures(tmp_path) == [echo, own] and find_root_cause(read_failures(tmp_path)) == own
    same = [RankFailure(rank, "user", "no such file", time=-rank) for rank in (2, 1)]
    assert find_root_cause(same).rank == 1
    refused = make_failure(1, UserError(["one", "two"]), "")
    assert (refused.kind, refused.text, refused.secondary) == ("user", "one\ntwo", False)
