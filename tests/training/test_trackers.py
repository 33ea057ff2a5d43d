"""run.track: each tracker has the numbers of metrics.jsonl, once each, and nothing secret."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.launch.checks import PACKAGES, check_trackers
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training import run as running
from rlvr_cli.training.tracking import numbers
from tests.training.processes import interrupted_after

SECRETS = {
    "HF_TOKEN": "hf_theSecretOfTheHub",
    "WANDB_API_KEY": "1234567890abcdef1234567890abcdef12345678",
    "OPENAI_API_KEY": "sk-theSecretOfTheServer",
}
OVERRIDES = [
    "train.rollouts=3",
    "rollout.prompts=4",
    "rollout.max_new_tokens=40",
    "update.mini_batches=4",
    "checkpoint.every=3",
    "task.train_size=32",
    "optimizer.lr=1e-3",
    "run.threads=1",
    "eval.every=2",
    "eval.problems=8",
    "eval.samples=2",
    "eval.pass_at=[1, 2]",
]
STEPS = list(range(1, 13))


def needs(name: str) -> None:
    modules, command = PACKAGES[name]
    if importlib.util.find_spec(modules[0]) is None:
        pytest.skip(f"{modules[0]} is not installed ({command})")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for name in ("TENSORBOARD_LOGGING_DIR", "WANDB_PROJECT", "WANDB_DIR", "MLFLOW_RUN_ID", "TRACKIO_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("GIT_PYTHON_REFRESH", "quiet")


def start(folder: Path, *overrides: str) -> running.RunEnd:
    config = load_config([], overrides=[*OVERRIDES, f"run.dir={folder}", "run.name=tracked", *overrides])
    return running.start_training(config, overwrite=False, console=Console(quiet=True))


def tracked_and_resumed(folder: Path, tracker: str) -> RunDir:
    """A run that was stopped, lost its newest checkpoint, and so made some of its steps again."""
    with interrupted_after(7):
        outcome = start(folder, f"run.track=[{tracker}]")
    assert outcome.status == "interrupted"
    newest = valid_checkpoints(outcome.run.checkpoints_dir)[0]
    assert newest.step > 6
    shutil.rmtree(newest.path)
    assert running.resume_training(outcome.run, console=Console(quiet=True)).status == "finished"
    return outcome.run


def rows(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics_path.read_text().splitlines()]


def expected(run: RunDir) -> dict[str, list[tuple[int, float]]]:
    """Every number of metrics.jsonl by the name that transformers' integrations show: (step, value), in order."""
    series: dict[str, list[tuple[int, float]]] = {}
    for row in rows(run):
        for name, value in numbers(row).items():
            shown = f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"
            series.setdefault(shown, []).append((row["step"], value))
    assert len(series) > 40 and [step for step, _ in series["train/rollout"]] == STEPS
    assert [step for step, _ in series["eval/pass@2"]] == [8]
    return series


def assert_equal_series(
    found: dict[str, list[tuple[int, float]]], wanted: dict[str, list[tuple[int, float]]], *, float32: bool = False
) -> None:
    assert found.keys() == wanted.keys()
    for name, points in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        values = [struct.unpack("f", struct.pack("f", value))[0] if float32 else value for _, value in points]
        assert [value for _, value in found[name]] == values, name


def assert_no_secrets(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        for secret in SECRETS.values():
            assert secret.encode() not in content, path


def test_numbers_of_a_row() -> None:
    row = {
        "step": 7,
        "rollout": 3,
        "pass": "low",
        "reward": 0.5,
        "reward/format": 1,
        "grad_norm": None,
        "alert": True,
        "bad": float("nan"),
        "eval": {"pass@1": 0.25, "tasks": {"kk": {"greedy": 1}}},
    }
    sent = {"rollout": 3, "reward": 0.5, "reward/format": 1, "alert": 1, "eval_pass@1": 0.25, "eval_tasks/kk/greedy": 1}
    assert numbers(row) == sent
    assert all(type(value) in (int, float) for value in numbers(row).values())


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        check_trackers(["wandb", "mlflow"])
    assert len(error.value.problems) == 2
    assert 'pip install "rlvr[wandb]"' in error.value.problems[0]
    check_trackers([])


def test_the_command_line_asks_before_it_starts(tmp_path: Path) -> None:
    missing = next((name for name, (modules, _) in PACKAGES.items() if not importlib.util.find_spec(modules[0])), None)
    if missing is None:
        pytest.skip("every tracker is installed")
    command = [sys.executable, "-m", "rlvr_cli", "train", f"run.dir={tmp_path}/runs", f"run.track=[{missing}]"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and f"rlvr[{missing}]" in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_an_unknown_tracker_is_a_mistake() -> None:
    with pytest.raises(UserError, match=r"run\.track.*tensorboard, wandb, trackio, mlflow"):
        load_config([], overrides=["run.track=[tensorbord]"])


def test_tensorboard_has_every_number_once(tmp_path: Path) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tracked_and_resumed(tmp_path, "tensorboard")
    assert len(list((run.path / "tensorboard").iterdir())) == 2, "one event file a start"
    read = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    found = {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}
    assert_equal_series(found, expected(run), float32=True)
    assert "rlvr/text_summary" in read.Tags()["tensors"]
    assert_no_secrets(tmp_path)


def test_tensorboard_changes_no_number(tmp_path: Path) -> None:
    needs("tensorboard")
    with_it = start(tmp_path / "with", "run.track=[tensorboard]").run
    without = start(tmp_path / "without").run
    assert with_it.metrics_path.read_bytes() == without.metrics_path.read_bytes()
    assert not (without.path / "trackers.json").exists() and not (without.path / "tensorboard").exists()


def test_a_tracker_that_fails_on_the_way_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("tensorboard")
    from transformers.integrations import TensorBoardCallback

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(TensorBoardCallback, "on_log", full)
    outcome = start(tmp_path, "run.track=[tensorboard]")
    assert outcome.status == "finished"
    assert outcome.run.log_path.read_text().count("tensorboard failed and gets nothing more: No space left") == 1


def test_a_tracker_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("tensorboard")
    from transformers.integrations import TensorBoardCallback

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ValueError("no such project")

    monkeypatch.setattr(TensorBoardCallback, "on_train_begin", refuse)
    with pytest.raises(RunError, match=r"run\.track=tensorboard: .* cannot be started: no such project"):
        start(tmp_path, "run.track=[tensorboard]")


def test_wandb_offline_has_every_number_once(tmp_path: Path) -> None:
    needs("wandb")
    import wandb

    run = tracked_and_resumed(tmp_path, "wandb")
    wandb.teardown()
    folders = sorted((run.path / "wandb").glob("offline-run-*"))
    identifier = json.loads((run.path / "trackers.json").read_text())["wandb"]["id"]
    assert len(folders) == 2 and all(folder.name.endswith(f"-{identifier}") for folder in folders)
    found: dict[str, list[tuple[int, float]]] = {}
    for folder in folders:
        for values in _wandb_history(next(folder.glob("*.wandb"))):
            step = int(values.pop("train/global_step"))
            for name, value in values.items():
                if not name.startswith("_"):
                    found.setdefault(name, []).append((step, value))
    assert_equal_series(found, expected(run))
    assert_no_secrets(tmp_path)


def _wandb_history(path: Path) -> Iterator[dict[str, Any]]:
    from wandb.proto import wandb_internal_pb2

    for data in _wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format (blocks of 32 KiB), after a head of 7 bytes."""
    block, head, parts, place = 32768, 7, b"", 7
    while place + head <= len(content):
        if block - place % block < head:
            place += block - place % block
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + head])
        parts += content[place + head : place + head + length]
        place += head + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""


def test_mlflow_has_every_number_once(tmp_path: Path) -> None:
    needs("mlflow")
    from mlflow import MlflowClient

    run = tracked_and_resumed(tmp_path, "mlflow")
    client = MlflowClient(os.environ["MLFLOW_TRACKING_URI"])
    identifier = json.loads((run.path / "trackers.json").read_text())["mlflow"]["id"]
    logged = client.get_run(identifier)
    assert logged.info.status == "FINISHED" and logged.info.run_name == "tracked"
    assert logged.data.params["optimizer.lr"] == "0.001"
    found = {
        name: sorted((metric.step, metric.value) for metric in client.get_metric_history(identifier, name))
        for name in logged.data.metrics
    }
    names = {name: name.removeprefix("train/").replace("eval/", "eval_", 1) for name in expected(run)}
    wanted = {
        names[name].replace("@", "_").replace("/", "."): [(step, float(value)) for step, value in points]
        for name, points in expected(run).items()
    }
    assert_equal_series(found, wanted)
    assert_no_secrets(tmp_path)


def test_trackio_has_every_number_once(tmp_path: Path) -> None:
    needs("trackio")
    run = tracked_and_resumed(tmp_path, "trackio")
    folder = Path(import_module("trackio.utils").TRACKIO_DIR)  # read from the environment when it was first imported
    (database,) = folder.rglob("rlvr*.db")
    with sqlite3.connect(database) as connection:
        kept = connection.execute("SELECT run_name, metrics FROM metrics ORDER BY id").fetchall()
    found: dict[str, list[tuple[int, float]]] = {}
    for name, text in kept:
        assert name == "tracked"
        values = json.loads(text)
        step = int(values.pop("train/global_step"))
        for key, value in values.items():
            found.setdefault(key, []).append((step, value))
    assert_equal_series(found, expected(run))
    assert_no_secrets(folder)
    assert_no_secrets(tmp_path)


@pytest.mark.slow
def test_one_of_two_processes_sends(tmp_path: Path) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    command = [sys.executable, "-m", "rlvr_cli", "train", "--processes", "2", *OVERRIDES, f"run.dir={tmp_path}"]
    subprocess.run([*command, "run.name=tracked", "run.track=[tensorboard]"], check=True, stdout=subprocess.DEVNULL)
    run = RunDir(tmp_path / "tracked")
    assert len(list((run.path / "tensorboard").iterdir())) == 1
    read = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    found = {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}
    assert_equal_series(found, expected(run), float32=True)
