"""Evaluation on the way in several processes: each samples a share, rank 0 writes, a kill in the middle is undone."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.core.files import read_jsonl
from tests.launch.launches import NARROW, finish, kill_tree, start
from tests.launch.test_sharded import SHIM, WAYS

# Two evaluations of 36 samples, four of each process at a time.
EVALUATED = [
    *NARROW,
    "validation.every=1",
    "validation.problems=12",
    "validation.samples=2",
    "validation.pass_at=[1,2]",
    "validation.batch=4",
]
SAMPLES = 36
SECOND = Path("eval", "in-training", "rollout-000002")


def kill_in_second_evaluation(process: subprocess.Popen[str], run: Path) -> int:
    """kill -9 of everything once the second evaluation has begun; how many samples there were."""
    path = run / SECOND / "samples.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < 8:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.0005)
    kill_tree(process)
    return path.read_bytes().count(b"\n")


def record(run: Path) -> dict[str, Any]:
    """What an evaluation leaves, without the file of its lock."""
    files = [path for path in sorted((run / "eval").rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("way", [(), WAYS["zero3"]])
def test_a_kill_in_the_middle_of_an_evaluation(tmp_path: Path, way: tuple[str, ...]) -> None:
    environment = {"PYTHONPATH": str(SHIM)} if way else {}
    settings = ("--processes", "2", *way, f"run.dir={tmp_path}", *EVALUATED, "checkpoint.every=1")
    finish(start("run.name=whole", *settings, environment=environment))
    whole, run = tmp_path / "whole", tmp_path / "broken"
    process = start("run.name=broken", *settings, environment=environment)
    assert kill_in_second_evaluation(process, run) < SAMPLES, "the kill came too late to show anything"
    assert not (run / SECOND / "metrics.json").exists()
    finish(start("--resume", str(run), environment=environment))
    assert record(run) == record(whole) and len(record(run)) == 10
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert len(read_jsonl(run / SECOND / "samples.jsonl")) == SAMPLES
