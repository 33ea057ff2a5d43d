"""What a step costs apart from sampling, verification and update, counted: files, waits for the disk, stacks, "
"modules."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr_cli.config.load import load_config
from rlvr_cli.training import run as running

ROLLOUTS, UPDATES = 3, 2
SETTINGS = {
    "train.rollouts": ROLLOUTS,
    "rollout.prompts": 4,
    "rollout.group_size": 4,
    "rollout.max_new_tokens": 16,
    "update.mini_batches": UPDATES,
    "checkpoint.every": 1000,
    "task.train_size": 32,
    "run.threads": 1,
    "run.name": "counted",
}


@pytest.mark.counts
def test_a_step_appends_two_lines_and_a_rollout_waits_for_the_disk_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: Counter[str] = Counter()
    opened: Counter[str] = Counter()
    stacks: list[Any] = []
    watching = True

    def name(path: str) -> str:
        inside = Path(path).relative_to(tmp_path / "counted") if path.startswith(str(tmp_path / "counted")) else None
        return inside.parts[0] if inside is not None and inside.parts else ""

    def fsync(descriptor: int, real: Any = os.fsync) -> None:
        waited[name(str(Path(f"/proc/self/fd/{descriptor}").readlink()))] += 1
        real(descriptor)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], str):
            opened[name(arguments[0])] += 1

    def format_stack(*arguments: Any, real: Any = traceback.format_stack, **named: Any) -> Any:
        if waited["rollouts"]:
            stacks.append(arguments)
        return real(*arguments, **named)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(traceback, "format_stack", format_stack)
    sys.addaudithook(audit)  # stays, and sees nothing any more once this test is over
    config = load_config([], overrides=[f"run.dir={tmp_path}", *(f"{key}={value}" for key, value in SETTINGS.items())])
    running.start_training(config, overwrite=False, console=Console(quiet=True))
    watching = False
    # With the checkpoint at the end.
    assert waited["rollouts"] == 2 * ROLLOUTS + 1
    assert waited["metrics.jsonl"] == waited["timings.jsonl"] == 1
    assert opened["timings.jsonl"] == ROLLOUTS * UPDATES + 1
    # Records are hashed with the checkpoint and at the end: what was added to metrics.jsonl, and each rollout once. The
    # first and the last rollout's accuracy are read for what the end says.
    assert opened["metrics.jsonl"] == ROLLOUTS * UPDATES + 1 + 2 + 1
    assert opened["rollouts"] == 2 * ROLLOUTS + 1 + ROLLOUTS
    # torch.manual_seed would do so for each kind of device that is not there.
    assert not stacks


@pytest.mark.counts
@pytest.mark.slow
def test_training_imports_no_server_no_tracker_and_no_chart(tmp_path: Path) -> None:
    # Where vLLM is installed, TRL imports it, and vLLM much else.
    code = (
        "import sys; from trl import GRPOTrainer; known = set(sys.modules); import rlvr_cli.training.build; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - known}))"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, check=True
    )
    unused = "deepspeed vllm altair vl_convert optuna math_verify fastapi wandb mlflow tensorboard"
    assert not set(unused.split()) & set(done.stdout.split())
