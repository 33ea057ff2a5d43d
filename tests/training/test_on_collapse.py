"""A run that shows a collapse: what it writes and says, that a resume goes on exactly, and that it can be stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from rlvr_cli.collapse.alerts import NO_SIGNAL, PATTERNS, Alert, AlertMonitor, Thresholds
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training import run as running
from rlvr_cli.training.alerts import TrainingAlerts
from tests.matrix import metrics, resume

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
LAX = Thresholds(start=1, window=2, window_problems=1, higher=1.2, lower=0.8, accuracy_drop=0.05, accuracy_errors=0.0)


@pytest.fixture(autouse=True)
def _lax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingAlerts, "thresholds", LAX)


def trained(folder: Path, name: str, *overrides: str) -> RunDir:
    config = load_config(overrides=[*SETTINGS, f"run.dir={folder}", f"run.name={name}", *overrides])
    return running.start_training(config, overwrite=False, console=Console(quiet=True)).run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TrainingAlerts, "thresholds", LAX)
        return trained(tmp_path_factory.mktemp("runs"), "whole")


def raised(run: RunDir) -> list[Alert]:
    """The collapses that a run reports, in order."""
    monitor, alerts = AlertMonitor(PROBLEMS, LAX), []
    for row in metrics(run):
        alerts += [alert for alert in monitor.add(row) if alert.name != NO_SIGNAL]
    return alerts


def logged(run: RunDir) -> list[str]:
    return [line.split(" alert: ")[1] for line in run.log_path.read_text().splitlines() if " alert: " in line]


def test_metrics_log_and_a_later_look_at_the_lines_agree(whole: RunDir) -> None:
    rows, alerts = metrics(whole), raised(whole)
    assert len(alerts) >= 2, "otherwise this shows nothing"
    for number, row in enumerate(rows):
        assert {f"alert/{pattern}" for pattern in PATTERNS} <= row.keys()
        assert all(row[f"alert/{alert.name}"] == 1 for alert in alerts if alert.first == row["rollout"])
        if number % 2:
            columns = {name: value for name, value in row.items() if name.startswith("alert/")}
            assert columns.items() <= rows[number - 1].items(), "all lines of a rollout have the same alerts"
    assert logged(whole) == [str(alert) for alert in alerts]


def test_stop_ends_the_run_with_the_evidence_and_the_way_on(whole: RunDir, tmp_path: Path) -> None:
    first = raised(whole)[0]
    with pytest.raises(RunError) as caught:
        trained(tmp_path, "stopped", "train.on_collapse=stop")
    run, message = RunDir(tmp_path / "stopped"), str(caught.value)
    assert str(first) in message and f"rollout {first.first + 1}: " in message and "\n" not in message
    # Two updates a rollout; the rule has looked at two rollouts.
    before = run.checkpoints_dir / f"step-{2 * (first.first - 1)}"
    assert before.is_dir()
    manifest, rows = run.read_manifest(), metrics(run)
    assert manifest["status"] == "failed" and manifest["error"] == message
    assert message in run.log_path.read_text()
    assert rows == metrics(whole)[: len(rows)] and len(rows) == 2 * first.first + 1
    # The command at the end of the message works as it is.
    options, advised = message.split("rlvr train -c ")[1].split(maxsplit=1)
    assert options == str(run.config_path)
    assert advised == f"run.name=NEW model.name={before} optimizer.lr=0.0015"
    again = load_config([run.config_path], overrides=[*advised.split(), "train.rollouts=1"])
    assert running.start_training(again, overwrite=False, console=Console(quiet=True)).status == "finished"
    with pytest.raises(RunError, match=f"rollout {first.first + 1}: "):
        resume(run)
