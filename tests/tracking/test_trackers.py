"""track.to: a tracker has the numbers of metrics.jsonl, once each, and nothing secret; TensorBoard is the real one."""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.runs.checkpoints import valid_checkpoints
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.trials import TRIALS
from rlvr_cli.tracking.trackers import (
    TRACKERS,
    Row,
    TrackedRun,
    Tracker,
    check_trackers,
    format_completion,
    mlflow_name,
)
from rlvr_cli.tracking.tracking import EvaluationTracking, RunTracking, completion_rows, flatten_metrics
from rlvr_cli.training import run as running
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
    "validation.every=2",
    "validation.problems=8",
    "validation.samples=2",
    "validation.pass_at=[1, 2]",
    "track.completions_every=2",
    "track.completions=5",
    "track.group=first-tries",
    "track.tags=[lopti, small]",
]
STEPS = list(range(1, 13))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)


def start(folder: Path, *overrides: str) -> running.RunEnd:
    config = load_config([], overrides=[*OVERRIDES, f"run.dir={folder}", "run.name=tracked", *overrides])
    return running.start_training(config, overwrite=False, console=Console(quiet=True))


def tracked_and_resumed(folder: Path) -> RunDir:
    """A run that was stopped, lost its newest checkpoint, and so made some of its steps again."""
    with interrupted_after(7):
        outcome = start(folder, "track.to=[tensorboard]")
    assert outcome.status == "interrupted"
    newest = valid_checkpoints(outcome.run.checkpoints_dir)[0]
    assert newest.step > 6
    shutil.rmtree(newest.path)
    assert running.resume_training(outcome.run, console=Console(quiet=True)).status == "finished"
    return outcome.run


def rows(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics_path.read_text().splitlines()]


def expected(run: RunDir) -> dict[str, list[tuple[int, float]]]:
    """Every number of metrics.jsonl by its name at a tracker: (step, value), in order."""
    series: dict[str, list[tuple[int, float]]] = {}
    for row in rows(run):
        for name, value in flatten_metrics(row).items():
            series.setdefault(name, []).append((row["step"], value))
    assert len(series) > 40 and [step for step, _ in series["train/rollout"]] == STEPS
    assert [step for step, _ in series["eval/pass@2"]] == [8]
    return series


def assert_equal_series(found: dict[str, list[tuple[int, float]]], wanted: dict[str, list[tuple[int, float]]]) -> None:
    """TensorBoard keeps float32."""
    assert found.keys() == wanted.keys()
    for name, points in wanted.items():
        assert found[name] == [(step, struct.unpack("f", struct.pack("f", value))[0]) for step, value in points], name


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
    of_training = {"train/rollout": 3, "train/reward": 0.5, "train/reward/format": 1, "train/alert": 1}
    assert flatten_metrics(row) == {**of_training, "eval/pass@1": 0.25, "eval/tasks/kk/greedy": 1}
    assert all(type(value) in (int, float) for value in flatten_metrics(row).values())
    assert [mlflow_name(name) for name in ("train/reward/format", "eval/pass@2")] == [
        "train/reward.format",
        "eval/pass_2",
    ]


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        check_trackers(["wandb", "mlflow"])
    assert len(error.value.problems) == 2
    assert 'pip install "rlvr[wandb]"' in error.value.problems[0]
    check_trackers([])


def test_tensorboard_has_every_number_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tracked_and_resumed(tmp_path)
    assert len(list((run.path / "tensorboard").iterdir())) == 2, "one event file a start"
    read = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    found = {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}
    assert_equal_series(found, expected(run))
    assert {"run/text_summary", "config/text_summary", "completions/text_summary"} <= set(read.Tags()["tensors"])
    (shown,) = read.Tensors("completions/text_summary")
    text = shown.tensor_proto.string_val[0].decode()
    assert shown.step == 8 and text.count("**reward**") == 5 and "**reason**" in text
    assert b"group: first-tries" in read.Tensors("run/text_summary")[-1].tensor_proto.string_val[0]
    assert_no_secrets(tmp_path)


def test_tensorboard_changes_no_number(tmp_path: Path) -> None:
    with_it = start(tmp_path / "with", "track.to=[tensorboard]").run
    without = start(tmp_path / "without").run
    assert with_it.metrics_path.read_bytes() == without.metrics_path.read_bytes()
    assert not (without.path / "trackers.json").exists() and not (without.path / "tensorboard").exists()


class Recording(Tracker):
    """A tracker that keeps what it is sent, and can be told to fail."""

    module = "json"
    extra = "json"
    sent: ClassVar[list[tuple[int, Mapping[str, float], int]]] = []
    begun: ClassVar[list[tuple[TrackedRun, int]]] = []
    fails: ClassVar[set[str]] = set()

    def __init__(self, run: TrackedRun, known: dict[str, Any], step: int) -> None:
        if "begin" in self.fails:
            raise ValueError("no such server.")
        self.begun.append((run, step))

    def log(self, values: Mapping[str, float], step: int, completions: Sequence[Row] = ()) -> None:
        if "log" in self.fails:
            raise OSError("connection lost")
        self.sent.append((step, values, len(completions)))

    def finish(self) -> None:
        self.sent.append((-1, {}, 0))


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> type[Recording]:
    monkeypatch.setitem(TRACKERS, "wandb", Recording)  # type: ignore[arg-type]
    for kept in (Recording.sent, Recording.begun, Recording.fails):
        kept.clear()
    return Recording


def folder_of_a_run(folder: Path, steps: int) -> RunDir:
    """A run with two steps a rollout, whose files say that ``steps`` were made."""
    run = RunDir(folder)
    folder.mkdir(parents=True)
    run.make_folders()
    record = {
        "problem": "p",
        "prompt": "1+1=",
        "completion": "2",
        "reward": 1.0,
        "correct": True,
        "reason": "correct",
        "answer": None,
        "advantage": 0.5,
        "tokens": 3,
        "truncated": False,
    }
    for rollout in range(steps // 2):
        text = "".join(json.dumps({**record, "problem": f"p{place}"}) + "\n" for place in range(8))
        (run.rollouts_dir / f"rollout-{rollout:06d}.jsonl").write_text(text)
    lines = [line_of(step) for step in range(1, steps + 1)]
    run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def line_of(step: int) -> dict[str, Any]:
    return {"step": step, "rollout": (step - 1) // 2, "update": (step - 1) % 2, "reward": step / 10}


SMALL = ["track=wandb", "track.completions_every=2", "track.completions=3", "update.mini_batches=2"]


def test_steps_that_a_tracker_missed_are_sent_when_the_run_is_resumed(
    tmp_path: Path, recording: type[Recording]
) -> None:
    config, run = load_config([], overrides=SMALL), folder_of_a_run(tmp_path / "run", 6)
    said: list[str] = []
    first = RunTracking(config, run, said.append)
    first.begin(0)
    assert said == ["wandb: "] and recording.sent == [], "nothing is past at the start"
    for step in (1, 2):
        first.step(line_of(step))
    recording.fails.add("log")
    first.step(line_of(3))
    first.step(line_of(4))
    assert len(said) == 2 and "connection lost" in said[1] and "a later --resume sends the missing steps" in said[1]
    recording.fails.clear()
    again = RunTracking(config, run, said.append)
    again.begin(6)
    again.step(line_of(7))
    assert [step for step, _, _ in recording.sent] == [1, 2, 3, 4, 5, 6, 7]
    assert [count for _, _, count in recording.sent] == [0, 0, 0, 3, 0, 0, 0], "a table after every second rollout"
    again.end()
    assert recording.sent[-1][0] == -1


def test_only_the_start_of_a_run_may_fail(tmp_path: Path, recording: type[Recording]) -> None:
    config, run = load_config([], overrides=SMALL), folder_of_a_run(tmp_path / "run", 2)
    recording.fails.add("begin")
    with pytest.raises(RunError, match=r"track\.to=wandb: wandb cannot be started: no such server\. Nothing was"):
        RunTracking(config, run, print).begin(0)
    said: list[str] = []
    resumed = RunTracking(config, run, said.append)
    resumed.begin(2)
    resumed.step(line_of(3))
    assert len(said) == 1 and "cannot be started again: no such server. The training continues" in said[0]


def test_a_trial_of_a_sweep_is_in_the_group_of_the_sweep(tmp_path: Path, recording: type[Recording]) -> None:
    sweep = tmp_path / "rates"
    run = folder_of_a_run(sweep / "lr-1", 2)
    plain = load_config([], overrides=SMALL)
    RunTracking(plain, run, print).begin(2)
    (sweep / TRIALS).write_text("{}")
    RunTracking(plain, run, print).begin(2)
    RunTracking(load_config([], overrides=[*SMALL, "track.group=mine", "track.name=x"]), run, print).begin(2)
    found = [(tracked.name, tracked.group, tracked.job_type) for tracked, _ in recording.begun]
    assert found == [("lr-1", None, "train"), ("lr-1", "rates", "sweep"), ("x", "mine", "sweep")]


def test_evaluations_are_sent_at_the_step_of_their_checkpoint(tmp_path: Path, recording: type[Recording]) -> None:
    config, run = load_config([], overrides=SMALL), folder_of_a_run(tmp_path / "run", 2)
    metrics = {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6}, "greedy": {"value": None}}
    result = {"benchmark": "data/my problems.jsonl", "split": "test", "metrics": metrics}
    said: list[str] = []
    tracking = EvaluationTracking(config, run.name, run, 40, said.append)
    tracking.add(result, tmp_path)
    tracking.add({**result, "benchmark": "kk-gen"}, tmp_path)
    tracking.end()
    names = ["eval/my-problems.jsonl/test/pass@1", "eval/kk-gen/test/pass@1"]
    assert recording.sent == [(40, {name: 0.5}, 0) for name in names] + [(-1, {}, 0)]
    ((tracked, step),) = recording.begun
    assert (tracked.name, tracked.job_type, step) == ("run eval", "eval", 40) and len(said) == 1
    recording.fails.add("begin")
    lost = EvaluationTracking(config, run.name, run, 40, said.append)
    lost.add(result, tmp_path)
    lost.end()
    assert "no such server. The results are not sent to it." in said[-1]


def test_a_table_is_spread_over_the_rollout_and_has_one_type_a_column() -> None:
    record = dict.fromkeys(("prompt", "completion", "reason", "reward", "correct", "advantage", "tokens", "truncated"))
    records = [{**record, "problem": f"p{place // 8}", "answer": place} for place in range(32)]
    assert [row["problem"] for row in completion_rows(records, 4)] == ["p0", "p1", "p2", "p3"]
    assert len(completion_rows(records, 100)) == 32 and completion_rows([], 4) == []
    assert {type(row["answer"]) for row in completion_rows(records, 4)} == {str}


@pytest.mark.parametrize("text", ["```\n<script>", "a | b", "x\r\n    y", "\u2028"])
def test_no_completion_leaves_its_block_in_tensorboard(text: str) -> None:
    shown = format_completion({"problem": "p", "prompt": "q", "completion": text})
    assert all(line.startswith("    ") for line in shown.split("\n")[4:] if line)
