"""`rlvr runs watch` on a real terminal, in a pipe, and for one look."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.cli.runs_watch import RunWatcher, fitted
from rlvr_cli.core.files import append_jsonl
from rlvr_cli.runs.folder import RunDir
from tests.launch.launches import LONG, ROOT, finish, start, wait_for_steps
from tests.runs.folders import make_run

SHOW_CURSOR = b"\x1b[?25h"


def make_running(root: Path, name: str, **manifest: Any) -> RunDir:
    """A run of 30 rollouts of two updates whose manifest says that it is running: it is, while its lock is held."""
    counts = {"step": 0, "steps_total": 60, "rollout": 0, "rollouts_total": 30}
    return make_run(root, name, status="running", **counts, **manifest)


def step(made: RunDir, number: int, *, reward: float = 0.0, seconds: float = 2.0) -> None:
    """An optimizer step's lines, from 1."""
    numbers = {"reward": reward, "accuracy": 0.5, "entropy": 0.25, "length": 20.0, "update_tokens": 300.0}
    append_jsonl(made.metrics_path, [{"step": number, "rollout": (number - 1) // 2, **numbers}])
    append_jsonl(made.timings_path, [{"step": number, "seconds": seconds}])


def looked(root: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert run(["runs", "watch", "--once", "--format=json", "--runs", str(root), *options]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


class Terminal:
    """A command on a pseudo-terminal of its own."""

    def __init__(self, *arguments: str, columns: int = 110, lines: int = 24) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rlvr_cli", *arguments],
            cwd=ROOT,
            env={**kept, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.output = b""

    def read_until(self, pattern: str) -> str:
        """What was printed since the last call, up to a match; all that waits is for the command to get there."""
        while not re.search(pattern, plain(self.output)):
            assert self._read(), f"{pattern} is not in {plain(self.output)}"
        text, self.output = plain(self.output), b""
        return text

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def end(self) -> tuple[int, bytes]:
        """The exit code, and all that was printed since the last match."""
        while self._read():
            pass
        os.close(self.ours)
        return self.process.wait(60), self.output

    def _read(self) -> bool:
        assert select.select([self.ours], [], [], 120)[0], f"nothing came after {plain(self.output)}"
        try:
            new = os.read(self.ours, 4096)
        except OSError:
            return False
        self.output += new
        return bool(new)


def plain(output: bytes) -> str:
    """Without what moves the cursor and sets colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", output.decode())


@contextmanager
def watching(*arguments: str, **size: int) -> Iterator[Terminal]:
    terminal = Terminal("runs", "watch", "--every", "0.2", *arguments, **size)
    try:
        yield terminal
    finally:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()


def test_one_look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path, "done")
    made = make_running(tmp_path, "sweep/a")
    assert looked(tmp_path, capsys) == []
    with made.lock():
        for number in (1, 2, 3):
            step(made, number, reward=number / 2, seconds=50.0 if number < 3 else 2.0)
        (row,) = looked(tmp_path, capsys)
        assert (row["name"], row["status"], row["rollout"], row["rollouts_total"]) == ("sweep/a", "running", 1, 30)
        assert (row["reward"], row["accuracy"], row["entropy"], row["length"]) == (1.5, 0.5, 0.25, 20)
        # The first rollout, which warms up, does not count where there are others.
        assert (row["tokens_per_second"], row["seconds_left"]) == (150, 57 * 2)
        assert [row["status"] for row in looked(tmp_path, capsys, "--all")] == ["finished", "running"]
        assert run(["runs", "watch", "--once", "--runs", str(tmp_path)]) == 0
        header, line = capsys.readouterr().out.splitlines()
    assert re.split(r" {2,}", header.strip())[-3:] == ["length", "tokens/s", "to go"]
    assert re.split(r" {2,}", line.strip()) == [
        *("sweep/a", "running", "1/30", "1.500", "0.500", "0.250", "20.0", "150", "2 min")
    ]
    assert run(["runs", "watch", "--once", "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"No run is running in {tmp_path} (2 that are not: --all).\n"


def test_files_that_a_run_has_not_written_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not begun, cut off in the middle of a line, no JSON, other things than steps, sizes of its own."""
    made = make_running(tmp_path, "a")
    unknown = {"reward": None, "tokens_per_second": None, "seconds_left": None}
    with made.lock():
        (row,) = looked(tmp_path, capsys)
        assert row["rollout"] == 0 and row.items() >= unknown.items()
        made.metrics_path.write_bytes(b'5\n[]\n{torn\n\xff\n{"step": "x", "reward": NaN}\n{"step": 4, "rew')
        made.timings_path.write_text('{"step": 4, "seconds": 0}\n')
        (row,) = looked(tmp_path, capsys)
        assert row["rollout"] == 0 and row.items() >= unknown.items()
        made.metrics_path.write_text("")
        append_jsonl(made.metrics_path, [{"step": 1, "padding": "x" * 200_000}])
        step(made, 2)
        assert looked(tmp_path, capsys)[0]["step"] == 2
        for totals in ({"steps_total": None}, {"rollouts_total": 0}, {"steps_total": 1}, {"steps_total": "many"}):
            made.update_manifest(**{"steps_total": 60, "rollouts_total": 30, **totals})
            assert looked(tmp_path, capsys)[0]["rollout"] is None


def test_a_terminal_follows_a_run_to_its_end(tmp_path: Path) -> None:
    made = make_running(tmp_path, "a")
    with watching("--runs", str(tmp_path)) as terminal:
        terminal.read_until("No run is running")
        with made.lock():
            step(made, 1, reward=0.125)
            terminal.read_until(r"a +running +0/30 +0\.125 +0\.500 +0\.250 +20\.0 +150 +2 min")
            step(made, 2, reward=0.75)
            terminal.read_until(r"a +running +1/30 +0\.750")
            made.update_manifest(status="finished", step=60, rollout=30)
        # A run that was running stays in sight.
        terminal.read_until(r"a +finished +30/30")
        terminal.type(b"\x03")
        code, output = terminal.end()
    assert code == 130
    assert SHOW_CURSOR in output and b"Traceback" not in output


def test_sigterm_gives_the_cursor_back(tmp_path: Path) -> None:
    with watching("--runs", str(tmp_path)) as terminal:
        terminal.read_until("No run is running")
        terminal.process.send_signal(signal.SIGTERM)
        code, output = terminal.end()
    assert code == 143 and SHOW_CURSOR in output and b"Traceback" not in output


def test_a_small_terminal_shows_what_fits(tmp_path: Path) -> None:
    for number in range(12):
        make_run(tmp_path, f"a-long-name-of-a-run-{number:02d}", last_metrics={"reward": 1.0})
    with watching("--all", "--runs", str(tmp_path), columns=40, lines=8) as terminal:
        text = terminal.read_until(r"and \d+ more").splitlines()
        terminal.type(b"\x03")
        assert terminal.end()[0] == 130
    shown = [line.rstrip() for line in text if line.strip()]
    assert all(len(line) <= 40 for line in shown) and len(shown) <= 8
    assert shown[0].split() == ["run", "status", "rollouts", "reward"]
    assert re.fullmatch(r"\S*\.\.\S*n-00  finished  60/60     1\.000", shown[1])
    assert shown[-1] == "and 7 more"


@pytest.mark.parametrize("width", [1, 20, 33, 50, 70, 90, 200])
def test_columns_are_left_out_before_names(width: int) -> None:
    row = ("sweep/grpo-s0-with-a-name", "running", "10/60", "0.125", "0.500", "0.250", "20.0", "1,234", "3 h 20 min")
    columns, ((name, *others),) = fitted([row], width)
    assert columns[:3] == ["run", "status", "rollouts"] and len(others) == len(columns) - 1
    if width >= 33:
        widths = [max(map(len, pair)) for pair in zip(columns, (name, *others), strict=True)]
        assert sum(widths) + 2 * (len(columns) - 1) <= width
        assert name.endswith("name")
    if width == 200:
        assert (name, *others) == row


def test_lines_in_a_pipe_and_lines_of_json(tmp_path: Path) -> None:
    made = make_running(tmp_path, "a")
    command = [sys.executable, "-m", "rlvr_cli", "runs", "watch", "--every", "0.2", "--runs", str(tmp_path)]
    with made.lock():
        step(made, 1)
        for options, ending in (([], signal.SIGINT), (["--format=json"], signal.SIGTERM)):
            process = subprocess.Popen(
                [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            line = process.stdout.readline()
            if options:
                assert [run["step"] for run in json.loads(line)["runs"]] == [2]
            else:
                assert line.startswith("a  running  rollouts 0/30  reward 0.000  accuracy 0.500  entropy 0.250  ")
                step(made, 2)
                # Only what has moved is said again.
                assert process.stdout.readline().startswith("a  running  rollouts 1/30  ")
            process.send_signal(ending)
            assert process.communicate(timeout=60)[1] == "" and process.returncode == 128 + ending


def test_a_folder_that_comes_and_goes(tmp_path: Path) -> None:
    """A watch may begin before the first training makes `runs`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rlvr_cli", "runs", "watch", "--every", "0.2", "--all"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "No run is running in runs; waiting for one.\n"
    make_run(tmp_path / "runs", "a")
    assert process.stdout.readline().startswith("a  finished  rollouts 60/60")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    look = RunWatcher(tmp_path / "runs", show_all=True)
    assert [row["name"] for row in look()] == ["a"]
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    assert look() == []


@pytest.mark.slow
def test_a_real_training(tmp_path: Path) -> None:
    training = start(*LONG, f"run.dir={tmp_path}", "run.name=real", "run.seed=1")
    wait_for_steps(tmp_path / "real", 3, training)
    with watching("--runs", str(tmp_path)) as terminal:
        terminal.read_until(r"real +running +\d+/200 +-?\d\.\d+ +\d\.\d+ +\d\.\d+ +\d+\.\d +[\d,]+ +\d")
        training.send_signal(signal.SIGINT)
        finish(training, 130)
        terminal.read_until(r"real +interrupted +\d+/200")
        terminal.type(b"\x03")
        assert terminal.end()[0] == 130
