"""A run's folder is complete or absent, whatever happens while it is made."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.runs.folder import RunDir, create_run, list_runs, newest_run
from tests.runs.folders import make_run

# Starts the run `mine` and is killed while its first files are written.
KILLED = """
import os, signal, sys
from pathlib import Path
from rlvr_cli.runs.folder import create_run

def fill(run):
    run.config_path.write_text("run: {}")
    os.kill(os.getpid(), signal.SIGKILL)

create_run(Path(sys.argv[1]), "mine", overwrite=len(sys.argv) > 2, fill=fill)
"""


def fill(run: RunDir) -> None:
    run.config_path.write_text("run: {seed: 0}\n")
    run.update_manifest(name="mine", status="running")


def full_disk(run: RunDir) -> None:
    run.config_path.write_text("run: {seed: 0}\n")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run.manifest_path))


def test_a_start_that_fails_keeps_the_run_that_it_would_have_replaced(tmp_path: Path) -> None:
    old = make_run(tmp_path, "mine", seed=7)
    with pytest.raises(UserError, match="No space left"):
        create_run(tmp_path, "mine", overwrite=True, fill=full_disk)
    assert old.read_manifest()["seed"] == 7 and [path.name for path in tmp_path.iterdir()] == ["mine"]
    create_run(tmp_path, "mine", overwrite=True, fill=fill)
    assert old.read_manifest()["status"] == "running" and [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("replaces", [False, True])
def test_a_start_that_is_killed_blocks_no_name(tmp_path: Path, replaces: bool) -> None:
    if replaces:
        make_run(tmp_path, "mine", seed=7)
    command = [sys.executable, "-c", KILLED, str(tmp_path), *(["overwrite"] if replaces else [])]
    assert subprocess.run(command, check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1 + replaces, "the kill left nothing to clean up"
    assert [run.name for run in list_runs(tmp_path)] == (["mine"] if replaces else [])
    create_run(tmp_path, "mine", overwrite=replaces, fill=fill)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    newest = newest_run(tmp_path)
    assert newest is not None and newest.read_manifest()["status"] == "running"


@pytest.mark.parametrize("left", ["folders", "no manifest"])
def test_a_run_without_its_manifest_can_be_replaced(tmp_path: Path, left: str) -> None:
    run = RunDir(tmp_path / "mine")
    run.path.mkdir()
    run.make_folders()
    if left != "folders":
        run.config_path.write_text("run: {seed: 0}\n")
    if left == "no manifest":
        (run.rollouts_dir / "rollout-000000.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"this run exists\. Replace it with --overwrite"):
        create_run(tmp_path, "mine", overwrite=False)
    create_run(tmp_path, "mine", overwrite=True, fill=fill)
    assert run.read_manifest()["status"] == "running" and not list(run.rollouts_dir.iterdir())


@pytest.mark.parametrize("file", ["eval/thesis.txt", "config.yaml"])
def test_what_is_not_a_run_is_not_replaced(tmp_path: Path, file: str) -> None:
    precious = tmp_path / "mine" / file
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    with pytest.raises(UserError, match="not a run directory"):
        create_run(tmp_path, "mine", overwrite=True)
    assert precious.read_text() == "years of work"
