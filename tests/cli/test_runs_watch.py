"""`rlvr runs watch` on a real terminal, in a pipe, and for one look."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.core.files import append_jsonl
from rlvr_cli.runs.folder import RunDir
from tests.launch.launches import ROOT
from tests.runs.folders import make_run


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
    assert capsys.readouterr().out == f"No run is running in {tmp_path} (--all shows 2 more).\n"


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
