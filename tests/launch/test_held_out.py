"""Evaluation on the way in several processes: each samples a share, rank 0 writes, a kill in the middle is undone."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.core.files import read_jsonl
from tests.launch.launches import NARROW, finish, kill_tree, manifest, ranks, start
from tests.launch.test_sharded import SHIM, WAYS

# Two evaluations of 36 samples, four of each process at a time.
EVALUATED = [*NARROW, "eval.every=1", "eval.problems=12", "eval.samples=2", "eval.pass_at=[1,2]", "eval.batch=4"]
SAMPLES = 36
SECOND = Path("eval", "in-training", "rollout-000002")

# Read by every Python process at its start: each says in its log what it samples; rank 1 may fail in the second round
# of the second evaluation.
WATCHED = """
import os
if "RANK" in os.environ and "RLVR_LAUNCH" in os.environ:
    from rlvr_cli.evaluation import sampling
    sample, calls = sampling._sample, []
    def watched(*arguments):
        calls.append(len(arguments[2]))
        rank = os.environ["RANK"]
        with open(os.environ["WATCHED"] + "-" + rank, "a") as stream:
            stream.write(f"{{calls[-1]}}\\n")
        if rank == "1" and len(calls) == {fails_at}:
            raise __import__("rlvr_cli.core.errors").core.errors.RunError("no luck")
        return sample(*arguments)
    sampling._sample = watched
"""


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
    assert record(run) == record(whole) and len(record(run)) == 8
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert len(read_jsonl(run / SECOND / "samples.jsonl")) == SAMPLES


@pytest.mark.slow
def test_a_failure_of_one_rank_in_an_evaluation_ends_all_and_is_told(tmp_path: Path) -> None:
    """Until then each had as many samples to make as the other: three rounds of four and four a greedy pass ..."""
    (tmp_path / "sitecustomize.py").write_text(WATCHED.format(fails_at=7))
    environment = {"PYTHONPATH": str(tmp_path), "WATCHED": str(tmp_path / "rows")}
    settings = ("--processes", "2", f"run.dir={tmp_path}", "run.name=run", *EVALUATED)
    output = finish(start(*settings, environment=environment), 1)
    assert "rank 1 of 2: no luck" in output and "Traceback" not in output and "rank 0 of 2" not in output
    run = tmp_path / "run"
    assert manifest(run)["status"] == "failed" and "rank 1 of 2: no luck" in manifest(run)["error"]
    first, second = ([int(row) for row in (tmp_path / f"rows-{rank}").read_text().split()] for rank in (0, 1))
    # The greedy pass of 12 problems in pieces of eight, then 24 samples.
    assert first[:5] == second[:5] == [4, 2, 4, 4, 4]
    assert len(read_jsonl(run / SECOND / "samples.jsonl")) == 8


@pytest.mark.slow
def test_a_rank_killed_in_an_evaluation_is_named(tmp_path: Path) -> None:
    settings = ("--processes", "2", f"run.dir={tmp_path}", "run.name=run", *EVALUATED, "eval.problems=400")
    process, path = start(*settings), tmp_path / "run" / "eval" / "in-training" / "rollout-000001" / "samples.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < 8:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.001)
    ranks(process)[1].kill()
    assert "rank 1 of 2: killed by SIGKILL" in finish(process, 1)
