"""Several processes make the same run as one: weights, records, checkpoints, resume; under any launcher."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.sweep_kills import own_files
from rlvr_cli.config.load import load_config
from rlvr_cli.launch.command import find_free_port
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.seal import file_digest
from tests.commands import run_in
from tests.launch.launches import (
    NARROW,
    SMALL,
    difference,
    finish,
    kill_tree,
    manifest,
    popen,
    ranks,
    rows,
    start,
    wait_for_steps,
)

# Of a weight, after AdamW's steps of 1e-3: rounding differs with the rows sampled together, and an entry of the
# gradient near 0 makes a step of any sign. tests/training/test_gradient.py compares gradients to 1e-10.
LIMIT = 5e-4
# Of a rollout, which one writer makes: what sampling and judging say, but for the last digits of sums.
JUDGED = ("problem", "completion", "reward", "parts", "correct")
SAME = ("reward", "accuracy", "length", "update_tokens", "truncated", "rollout", "pass")


def both(folder: Path, *arguments: str) -> tuple[Path, Path]:
    """A run in one process, which is this one, and one in two."""
    narrow = [text for text in NARROW if not text.startswith("task.")]
    arguments = (f"run.dir={folder}", *narrow, *arguments)
    two = start("--processes", "2", "run.name=two", *arguments)
    (one,) = run_in(folder, ("train", "run.name=one", *arguments))
    assert one.code == 0, one
    finish(two)
    return folder / "one", folder / "two"


def test_one_run_whatever_the_number_of_processes(tmp_path: Path) -> None:
    """Lopti on a method, rewards and rows of files, with dynamic sampling, noise and an evaluation on the way."""
    own = ("--config", str(own_files(tmp_path)), "--method", f"{tmp_path / 'power.py'}+lopti")
    settings = (
        *(*own, "rollout.dynamic_sampling=1", "method.reward.noise=0.2", *SMALL),
        *(
            "validation.every=1",
            "validation.problems=4",
            "validation.samples=2",
            "validation.pass_at=[1,2]",
            "checkpoint.every=3",
        ),
    )
    one, two = both(tmp_path, *settings)
    assert difference(one, two) < LIMIT / 10
    assert [path.relative_to(one) for path in sorted(one.rglob("*")) if "checkpoints" not in path.parts] == [
        path.relative_to(two) for path in sorted(two.rglob("*")) if "checkpoints" not in path.parts
    ]
    for first, second in zip(rows(one), rows(two), strict=True):
        assert first.keys() == second.keys() and {key: first[key] for key in SAME} == {key: second[key] for key in SAME}
        assert first.get("eval") == second.get("eval")
        assert first["grad_norm"] == pytest.approx(second["grad_norm"], rel=1e-3, abs=1e-6)
    for path in sorted((one / "rollouts").iterdir()):
        lines = [(folder / "rollouts" / path.name).read_text().splitlines() for folder in (one, two)]
        assert len(lines[0]) == len(lines[1]) == 16
        judged = [[{key: json.loads(line)[key] for key in JUDGED} for line in of] for of in lines]
        assert judged[0] == judged[1]
    newest = valid_checkpoints(two / "checkpoints")[0].path
    assert len(list((newest / "trainer").glob("process-*.safetensors"))) == 2
    assert (manifest(two)["status"], manifest(two)["processes"]) == ("finished", 2)
    assert load_config([two / "config.yaml"]).launch.processes == 2
    assert (two / "log.txt").read_text().count("step 1/8 ") == 1


@pytest.mark.slow
def test_resume_is_exact_in_the_second_pass_of_lopti(tmp_path: Path) -> None:
    """Low, low, high, high in two processes: kill -9 of everything once the first step of the high pass is saved."""
    settings = ("--method", "lopti", "--processes", "2", f"run.dir={tmp_path}", *NARROW, "checkpoint.every=1")
    whole, run = tmp_path / "whole", tmp_path / "broken"
    unbroken = start("run.name=whole", *settings)
    process = start("run.name=broken", *settings, "checkpoint.keep=8")
    while not (run / "checkpoints" / "step-3").exists():
        assert process.poll() is None
        time.sleep(0.0005)
    kill_tree(process)
    finish(unbroken)
    saved = max(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))
    assert rows(whole)[saved]["pass"] == "high", "the kill came too late to show anything"
    output = finish(start("--resume", str(run)))
    assert f"at step {saved} of 8" in output
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    newest = [path / "checkpoints" / "step-8" / "model.safetensors" for path in (run, whole)]
    assert file_digest(newest[0]) == file_digest(newest[1])
    for path in (whole / "rollouts").iterdir():
        assert file_digest(path) == file_digest(run / "rollouts" / path.name)


def outer(processes: int, *arguments: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    return [*launcher, "--master_port", str(find_free_port()), "--module", "rlvr_cli", "train", *arguments]


CPU = {"ACCELERATE_USE_CPU": "true"}


@pytest.mark.slow
def test_started_by_torchrun_itself(tmp_path: Path) -> None:
    """It is one of its processes then, and the run is the same; a wrong number of processes is refused."""
    arguments = (f"run.dir={tmp_path}", *NARROW)
    ours = start("--processes", "2", "run.name=ours", *arguments)
    output = finish(popen(outer(2, "run.name=theirs", *arguments), CPU))
    assert output.count("step 1/4 ") == 1 and output.count("finished: ") == 1
    finish(ours)
    assert difference(tmp_path / "ours", tmp_path / "theirs") == 0
    assert load_config([tmp_path / "theirs" / "config.yaml"]).launch.processes == 2


@pytest.mark.slow
def test_two_machines(tmp_path: Path) -> None:
    """Two parents that meet at an address, here of one machine; one fails, and both say why."""
    arguments = ("--processes", "2", f"run.dir={tmp_path}", *NARROW)
    meet = {"NNODES": "2", "MASTER_ADDR": "127.0.0.1"}

    def machines(*more: str) -> list[subprocess.Popen[str]]:
        port = str(find_free_port())
        return [
            start(*more, environment={**meet, "MASTER_PORT": port, "NODE_RANK": str(number)}) for number in range(2)
        ]

    outputs = [finish(process) for process in machines(*arguments, "run.name=both")]
    assert "\nfinished: " in outputs[0] and "finished" not in outputs[1]
    finish(start("run.name=one", *arguments[2:]))
    assert difference(tmp_path / "one", tmp_path / "both") < LIMIT
    first, second = machines(*arguments, "run.name=broken", "train.rollouts=200", "checkpoint.every=1")
    wait_for_steps(tmp_path / "broken", 2, first)
    ranks(second)[1].send_signal(signal.SIGKILL)
    for process, message in (
        (first, "a process of another machine ended first"),
        (second, "rank 1 of 2: killed by SIGKILL (out of memory?)"),
    ):
        output = finish(process, 1)
        assert message in output and "Traceback" not in output
    assert "a process of another machine ended first" in manifest(tmp_path / "broken")["error"]
