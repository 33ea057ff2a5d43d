"""What a person does wrong at `rlvr train`: one clear message, exit code 2, no traceback, nothing left behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.models.source import PRESETS
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir

TINY = ["rollout.prompts=2", "rollout.max_new_tokens=8", "train.rollouts=1", "task.train_size=8", "run.threads=1"]


def model_without_weights(folder: Path) -> Path:
    copy = Path(shutil.copytree(PRESETS["lab"], folder / "empty"))
    (copy / "model.safetensors").unlink()
    return copy


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "{empty}"], ["no weights", "model.safetensors"]),
        (["--model", "./nowhere"], ["./nowhere", "no such folder"]),
        (["task.data={folder}/broken.jsonl"], ["broken.jsonl:1", "broken.jsonl:2"]),
        (["run.name=../escape"], ["run.name"]),
        (["run.dir={folder}/file"], ["file", "cannot be created"]),
        (["--resume", "{folder}/runs/none"], ["no such run"]),
        (["--resume", "{folder}"], ["not a run directory"]),
        (["rollout.prompts=3", "update.mini_batches=5"], ["mini_batches", "Nearest valid"]),
        (["task.people={{5: 1.0, 6: 0.5}}"], ["task.people", "sum to 1.5"]),
    ],
)
def test_refused_before_anything_starts(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: list[str]
) -> None:
    (tmp_path / "broken.jsonl").write_text("{oops\n" + json.dumps({"question": "?", "names": ["A", "B"]}) + "\n")
    (tmp_path / "file").write_text("a file, not a folder")
    places = {"folder": str(tmp_path), "empty": str(model_without_weights(tmp_path))}
    arguments = [argument.format(**places) for argument in arguments]
    given = [] if "--resume" in arguments else [*TINY, *([] if "dir=" in str(arguments) else [f"run.dir={runs}"])]
    assert run(["train", *given, *arguments]) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out
    for part in said:
        assert part in captured.err
    assert not runs.exists() or not any(runs.iterdir()), "something was left behind"


def test_a_full_disk_stops_with_a_message_and_keeps_the_last_checkpoint(runs: Path) -> None:
    """The limit on file sizes stands in for a full disk: the same calls fail at the same places."""
    settings = [*TINY, "train.rollouts=4", "checkpoint.every=1", f"run.dir={runs}", "run.name=full"]
    weights = (PRESETS["lab"] / "model.safetensors").stat().st_size

    def limit() -> None:
        # Weights fit, the optimizer's state (twice as large) does not.
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(1.5 * weights), int(1.5 * weights)))

    result = subprocess.run(
        [sys.executable, "-m", "rlvr_cli", "train", *settings],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=limit,
        timeout=240,
        check=False,
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert "File too large" in result.stderr and "--resume" in result.stderr
    checkpoints = runs / "full" / "checkpoints"
    assert valid_checkpoints(checkpoints) == [] and list(checkpoints.iterdir()) == []
    assert RunDir(runs / "full").read_manifest()["status"] == "failed"
    assert run(["train", "--resume", str(runs / "full")]) == 0


def test_a_full_disk_behind_standard_output_does_not_stop_training(runs: Path) -> None:
    """As in `rlvr train > log` where the log's disk is full: the run's own folder has room, so the run goes on."""
    command = [sys.executable, "-m", "rlvr_cli", "train", *TINY, f"run.dir={runs}", "run.name=unheard"]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("No space left on device") == 1 and str(runs) not in result.stderr
    assert RunDir(runs / "unheard").read_manifest()["status"] == "finished"
    assert "finished" in (runs / "unheard" / "log.txt").read_text()


def test_a_prompt_and_completion_beyond_the_models_positions(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *TINY, f"run.dir={runs}", "rollout.max_new_tokens=5000"]) == 2
    message = capsys.readouterr().err
    assert "512 positions" in message and "Allowed: up to" in message and not runs.exists()


@pytest.mark.parametrize("method", ["grpo", "sft"])
def test_an_evaluation_on_the_way_beyond_the_models_positions(
    method: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after the rollouts that come before it."""
    length = ["rollout.max_new_tokens=60", "validation.max_new_tokens=5000"]
    assert run(["train", "--method", method, *TINY, *length, f"run.dir={runs}", "validation.every=1"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("validation.max_new_tokens=5000") and "Allowed: up to" in message and not runs.exists()
