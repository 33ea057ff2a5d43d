"""A run that shows a collapse: what it writes and says, that a resume goes on exactly, and that it can be stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr_cli.collapse.alerts import alert_spans
from rlvr_cli.collapse.rules import Thresholds
from rlvr_cli.collapse.watch import PATTERNS, detect
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training import run as running
from rlvr_cli.training.alerts import TrainingAlerts
from tests.training.processes import interrupted_after

# A rate that ruins the policy within a few rollouts: the shares of an unharmed run are noise on so few completions.
SETTINGS = (
    "method=nl",
    "rollout.prompts=4",
    "rollout.max_new_tokens=40",
    "task.train_size=32",
    "run.threads=1",
    "optimizer.lr=3e-3",
    "update.mini_batches=2",
    "optimizer.lr_schedule=constant",
    "train.rollouts=8",
    "checkpoint.every=2",
    "checkpoint.keep=30",
)
PROBLEMS = 4
# Sharper than the real ones, so that tiny runs have alerts that come and go.
LAX = Thresholds(
    start=1,
    window=2,
    window_problems=1,
    fewest_problems=1,
    longer=1.2,
    shorter=0.8,
    accuracy_drop=0.05,
    accuracy_errors=0.0,
    format_drop=0.05,
    format_errors=0.5,
    pause=3,
)


@pytest.fixture(autouse=True)
def _lax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingAlerts, "thresholds", LAX)


def trained(folder: Path, name: str, *overrides: str) -> RunDir:
    config = load_config(overrides=[*SETTINGS, f"run.dir={folder}", f"run.name={name}", *overrides])
    return running.start_training(config, overwrite=False, console=Console(quiet=True)).run


def metrics(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics_path.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TrainingAlerts, "thresholds", LAX)
        return trained(tmp_path_factory.mktemp("runs"), "whole")


def test_metrics_log_and_a_later_look_at_the_lines_agree(whole: RunDir) -> None:
    rows = metrics(whole)
    found = detect(rows, PROBLEMS, LAX)
    assert len(found) >= 2, "otherwise this shows nothing"
    for number, row in enumerate(rows):
        assert {f"alert/{pattern}" for pattern in PATTERNS} <= row.keys()
        told = [collapse.as_json() for collapse in found if collapse.first == row["rollout"]]
        assert row.get("collapse", []) == told
        assert all(row[f"alert/{collapse['pattern']}"] == 1 for collapse in told)
        if number % 2:
            alerts = {name: value for name, value in row.items() if name.startswith("alert/")}
            assert alerts.items() <= rows[number - 1].items(), "all lines of a rollout say the same"
    said = [line.split(" alert: ")[1] for line in whole.log_path.read_text().splitlines() if " alert: " in line]
    assert said == [str(collapse) for collapse in found]
    spans = [span for span in alert_spans(rows) if span.evidence]
    assert [(span.alert, span.first) for span in spans] == sorted(
        ((collapse.pattern, collapse.first) for collapse in found), key=lambda pair: (pair[1], pair[0])
    )


@pytest.mark.parametrize("steps", [7, pytest.param(10, marks=pytest.mark.slow)])
def test_warnings_go_on_exactly_after_a_stop(whole: RunDir, tmp_path: Path, steps: int) -> None:
    """Between two rollouts, and in the middle of one."""
    with interrupted_after(steps):
        broken = trained(tmp_path, "broken")
    assert broken.read_manifest()["status"] == "interrupted" and len(metrics(broken)) == steps + 1
    running.resume_training(broken, console=Console(quiet=True))
    assert broken.metrics_path.read_bytes() == whole.metrics_path.read_bytes()
    said = [line.split(" alert: ")[1] for line in broken.log_path.read_text().splitlines() if " alert: " in line]
    assert said == [str(collapse) for collapse in detect(metrics(whole), PROBLEMS, LAX)], "each is told once"


def test_stop_ends_the_run_with_the_evidence_and_the_way_on(whole: RunDir, tmp_path: Path) -> None:
    first = detect(metrics(whole), PROBLEMS, LAX)[0]
    with pytest.raises(RunError) as caught:
        trained(tmp_path, "stopped", "train.on_collapse=stop")
    run, message = RunDir(tmp_path / "stopped"), str(caught.value)
    assert str(first) in message and f"rollout {first.first + 1}: " in message and "\n" not in message
    # Two updates a rollout; the collapse began a rollout before the two that the rule has looked at.
    sound = run.checkpoints_dir / f"step-{2 * (first.first - 2)}"
    assert f"from before it began (in rollout {first.first})" in message
    assert f"model.name={sound} optimizer.lr=" in message and sound.is_dir()
    manifest, rows = run.read_manifest(), metrics(run)
    assert manifest["status"] == "failed" and manifest["error"] == message
    assert message in run.log_path.read_text()
    assert rows == metrics(whole)[: len(rows)] and len(rows) == 2 * first.first + 1
    advised = [f"model.name={sound}", "run.name=NEW", "optimizer.lr=1e-5"]
    again = load_config([run.config_path], overrides=[*advised, "train.rollouts=1"])
    assert running.start_training(again, overwrite=False, console=Console(quiet=True)).status == "finished"
    with pytest.raises(RunError, match=f"rollout {first.first + 1}: "):
        running.resume_training(run, console=Console(quiet=True))


def test_stop_says_where_no_sound_checkpoint_is_left(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"No checkpoint from before .* was kept \(checkpoint\.every, checkpoint\.keep\)"
    ):
        trained(tmp_path, "stopped", "train.on_collapse=stop", "checkpoint.every=1000", "train.rollouts=6")


def test_off_looks_at_nothing_and_changes_nothing_else(whole: RunDir, tmp_path: Path) -> None:
    rows = metrics(trained(tmp_path, "off", "train.on_collapse=off", "train.on_no_signal=off", "train.rollouts=5"))
    expected = [
        {name: value for name, value in row.items() if name != "collapse" and not name.startswith("alert/")}
        for row in metrics(whole)[:10]
    ]
    assert rows == expected != metrics(whole)[:10]


def test_another_value_is_refused() -> None:
    with pytest.raises(UserError, match=r"train\.on_collapse"):
        load_config(overrides=["train.on_collapse=panic"])
