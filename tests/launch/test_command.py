"""What would be started, and what is refused before: too many processes, files and variables that contradict."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.config.launch import LaunchConfig
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.launch import command as launching
from rlvr_cli.launch.command import Node, plan_node, rank_environment
from rlvr_cli.launch.world import world_of_environment

SIZES = ["rollout.prompts=8", "rollout.group_size=4"]


@pytest.fixture(autouse=True)
def lone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No launcher around this test, no GPU, no file of `accelerate config`."""
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    gpus(monkeypatch, 0)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(launching, "count_visible_gpus", lambda: count)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["launch.processes=3"], ["cannot share the 32 completions", "processes 2 or 4", "prompts 6 or 9"]),
        (
            ["launch.processes=4", "update.micro_batch=3"],
            ["update.micro_batch=3 does not divide the 8", "in each of launch.processes=4", "Nearest valid: 2 or 4"],
        ),
        (["launch.processes=0"], ["launch.processes"]),
    ],
)
def test_a_batch_that_cannot_be_shared(overrides: list[str], said: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        load_config(overrides=[*SIZES, *overrides])
    for part in said:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--processes", "2", "launch.processes=4"], "--processes 2  and launch.processes=4 cannot be combined"),
        (["--resume", "{folder}", "--processes", "2"], "Remove --config"),
    ],
)
def test_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    given = [argument.format(folder=tmp_path) for argument in arguments]
    assert run(["train", *given, *([] if "--resume" in given else [f"run.dir={tmp_path / 'runs'}"])]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err and not (tmp_path / "runs").exists()


def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    with pytest.raises(UserError, match=r"4 processes on this machine, and 2 GPUs are visible.*--processes 2 or fewer"):
        plan_node(LaunchConfig(processes=4))
    node, warnings = plan_node(LaunchConfig(processes=2))
    assert (node.gpus, warnings) == (2, []) and "ACCELERATE_USE_CPU" not in rank_environment(node, {})


def test_more_processes_than_cores_are_slow_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "usable_cores", lambda: 1)
    node, warnings = plan_node(LaunchConfig(processes=2))
    assert len(warnings) == 1 and "2 processes on 1 CPU core " in warnings[0]
    variables = rank_environment(node, {"A": "b"})
    assert variables["ACCELERATE_USE_CPU"] == "true" and variables["A"] == "b"


def test_srun_without_a_word_on_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """`srun -n 4 rlvr train --processes 4` is four trainings of four processes each."""
    monkeypatch.setattr(launching, "usable_cores", lambda: 8)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    _, (warning,) = plan_node(LaunchConfig(processes=4))
    assert "srun started 4 tasks of this command" in warning
    for name, value in {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert plan_node(LaunchConfig(processes=4))[1] == []


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NNODES": "2"}, ["NODE_RANK must be set", "MASTER_ADDR must be set", "MASTER_PORT must be set"]),
        ({"NNODES": "2", "NODE_RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, ["counted from 0 to NNODES - 1"]),
        ({"NNODES": "3", "NODE_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, ["Nearest valid: 3 or 6"]),
    ],
)
def test_machines_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: list[str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as refused:
        plan_node(LaunchConfig(processes=4))
    for part in said:
        assert part in str(refused.value)


def test_the_second_of_two_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501"}.items():
        monkeypatch.setenv(name, value)
    gpus(monkeypatch, 4)
    node, _ = plan_node(LaunchConfig(processes=8))
    assert node == Node(8, 4, 2, 1, "10.0.0.1", 29501, 4) and list(node.ranks) == [4, 5, 6, 7]


def test_an_outer_launchers_variables_do_not_reach_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCELERATE_USE_FSDP", "FSDP_VERSION", "RANK"):
        monkeypatch.setenv(name, "2")
    given = rank_environment(Node(2, 2, 1, 0, "127.0.0.1", 1, 0), {})
    assert not {"ACCELERATE_USE_FSDP", "FSDP_VERSION", "RANK"} & given.keys()


def test_the_port_is_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the choice and the launcher's start a connection of anyone could be given one of the system's."""
    assert launching.find_free_port() < 32_768  # where Linux begins
    with socket.socket() as taken:
        taken.bind(("", 0))
        monkeypatch.setattr(launching, "PORTS", [taken.getsockname()[1]])
        with pytest.raises(UserError, match="is free on this machine for the processes to rendezvous"):
            launching.find_free_port()


def test_a_rank_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UserError, match="RANK=2 of WORLD_SIZE=2"):
        world_of_environment()
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(UserError, match="RANK must be a whole number; got 'one'"):
        world_of_environment()


def test_the_parent_checks_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from rlvr_cli.cli.app import run; "
        f"assert run(['train', '--processes', '3', 'run.dir={tmp_path}']) == 2; "
        "import rlvr_cli.launch.torchrun, rlvr_cli.training.run; "
        "assert not {'torch', 'transformers', 'accelerate'} & set(sys.modules)"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert asked.returncode == 0, asked.stderr
