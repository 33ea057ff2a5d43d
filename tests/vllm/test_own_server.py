"""A server that rlvr starts, watches and ends, with a stand-in for vLLM's: see standin.py."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training import run as running
from tests.vllm.standin import python_with_vllm

QUIET = Console(quiet=True)
SHORT = ("rollout.prompts=4", "rollout.max_new_tokens=40", "task.train_size=32", "run.threads=1", "checkpoint.every=2")


def configured(folder: Path, *overrides: str) -> Config:
    engine = ("rollout.engine=vllm_server", f"rollout.vllm.python={python_with_vllm(folder)}", "optimizer.lr=1e-4")
    settings = [*SHORT, *engine, f"rollout.vllm.weights_dir={folder / 'weights'}", f"run.dir={folder}", *overrides]
    return load_config(method="grpo", overrides=settings)


def servers() -> list[psutil.Process]:
    """What the trainings of this process have started and left."""
    found = []
    for child in psutil.Process().children(recursive=True):
        # One that has ended, and that nobody has waited for yet, has no command line.
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child] if "standin.py" in " ".join(child.cmdline()) else []
    return found


def test_a_full_gpu_is_said_with_what_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_FULL", "1")
    wanted = r"ValueError: Free memory on device \(3/80 GiB\) is less.*vllm\.log.*rollout\.vllm\.gpu_memory lower"
    with pytest.raises(RunError, match=wanted):
        running.start_training(configured(tmp_path, "run.name=run"), overwrite=False, console=QUIET)
    assert RunDir(tmp_path / "run").read_manifest()["status"] == "failed"
    assert not list((tmp_path / "weights").iterdir()) and not servers()


def test_an_environment_without_vllm_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(UserError, match=r"has no package vllm.*rollout\.vllm\.python"):
        running.start_training(configured(tmp_path, f"rollout.vllm.python={python}"), overwrite=False, console=QUIET)
    with pytest.raises(UserError, match=r"nowhere: cannot be run"):
        running.start_training(configured(tmp_path, "rollout.vllm.python=/nowhere"), overwrite=False, console=QUIET)


@pytest.mark.slow
def test_a_run_whose_server_is_killed_goes_on_exactly(tmp_path: Path) -> None:
    whole = running.start_training(
        configured(tmp_path, "run.name=whole", "train.rollouts=5"), overwrite=False, console=QUIET
    ).run
    assert not servers() and not list((tmp_path / "weights").iterdir())
    log = whole.log_path.read_text()
    assert re.search(r"vLLM server: starting; its output: \S+/vllm\.log", log)
    assert re.search(r"vLLM server: ready at http://127\.0\.0\.1:\d+ \(vLLM 0\.0\)", log)

    def kill_in_rollout(rollout: int) -> None:
        while not (tmp_path / "run" / "rollouts" / f"rollout-{rollout:06d}.jsonl").exists():
            time.sleep(0.01)
        for server in servers():
            if "training.vllm.child" not in " ".join(server.cmdline()):
                server.send_signal(signal.SIGKILL)

    threading.Thread(target=kill_in_rollout, args=(3,), daemon=True).start()
    wanted = r"the vLLM server has ended \(killed by signal 9\).*rlvr train --resume"
    with pytest.raises(RunError, match=wanted):
        running.start_training(configured(tmp_path, "run.name=run", "train.rollouts=5"), overwrite=False, console=QUIET)
    run = RunDir(tmp_path / "run")
    assert run.read_manifest()["status"] == "failed" and not servers()
    running.resume_training(run, console=QUIET)
    assert read_jsonl(run.metrics_path) == read_jsonl(whole.metrics_path)
    assert not list((tmp_path / "weights").iterdir())


@pytest.mark.slow
def test_two_processes_share_a_server(tmp_path: Path) -> None:
    one = running.start_training(
        configured(tmp_path, "run.name=one", "train.rollouts=2"), overwrite=False, console=QUIET
    ).run
    config = tmp_path / "two.yaml"
    config.write_text(dump_yaml(configured(tmp_path, "run.name=two", "train.rollouts=2", "launch.processes=2")))
    done = subprocess.run(
        [sys.executable, "-m", "rlvr_cli", "train", "-c", str(config)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    two = RunDir(tmp_path / "two")
    first = "rollout-000000.jsonl"
    sampled = [[row["token_ids"] for row in read_jsonl(run.rollouts_dir / first)] for run in (one, two)]
    assert sampled[0] == sampled[1]
    manifest = two.read_manifest()
    assert manifest["sampler_check"]["matches"] and manifest["sampler_check_after_update"]["matches"]
    assert not servers() and not list((tmp_path / "weights").iterdir())
