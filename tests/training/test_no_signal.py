"""Trainings from which nothing can be learned, and weights from which nothing can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training import run as running
from rlvr_cli.training.recorder import Recorder
from tests.matrix import metrics, resume
from tests.training.processes import interrupted_after

# The lab's model never ends an answer in four tokens: every reward is the same.
SETTINGS = (
    "rollout.prompts=2",
    "rollout.group_size=4",
    "rollout.max_new_tokens=4",
    "task.train_size=16",
    "run.threads=1",
    "checkpoint.every=1",
)


def trained(folder: Path, name: str, *overrides: str) -> RunDir:
    config = load_config(overrides=[*SETTINGS, f"run.dir={folder}", f"run.name={name}", *overrides])
    return running.start_training(config, overwrite=False, console=Console(quiet=True)).run


def alerts(run: RunDir) -> list[str]:
    return [line for line in run.log_path.read_text().splitlines() if " alert: no signal" in line]


def test_it_is_told_after_three_rollouts_at_the_end_and_wherever_the_run_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*SETTINGS, f"run.dir={tmp_path}", "run.name=idle", "train.rollouts=5"]
    assert rlvr(["train", *line]) == 0
    printed = capsys.readouterr().out.splitlines()
    run = RunDir(tmp_path / "idle")
    assert [row["alert/no_signal"] for row in metrics(run)] == [0, 0, 1, 1, 1]
    assert len(alerts(run)) == 1
    assert "nothing was learned: no completion of 5 rollouts" in printed[-1]
    assert sum("rollout.max_new_tokens" in text for text in printed) == 2, "while it trains and at the end"
    assert (
        "nothing was learned" in run.log_path.read_text() and "nothing was learned" in run.read_manifest()["no_signal"]
    )
    assert rlvr(["runs", "list", "--runs", str(tmp_path)]) == 0
    assert "finished, no signal" in capsys.readouterr().out


def test_a_stop_and_a_resume_tell_it_once(tmp_path: Path) -> None:
    with interrupted_after(3):
        run = trained(tmp_path, "broken", "train.rollouts=5")
    assert run.read_manifest()["status"] == "interrupted"
    resume(run)
    assert len(alerts(run)) == 1 and [row["alert/no_signal"] for row in metrics(run)] == [0, 0, 1, 1, 1]


def test_stop_ends_the_run_and_off_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no signal: .*train\.on_no_signal=stop"):
        trained(tmp_path, "stopped", "train.on_no_signal=stop", "train.rollouts=5")
    assert len(metrics(RunDir(tmp_path / "stopped"))) == 3
    run = trained(tmp_path, "off", "train.on_no_signal=off", "train.rollouts=4")
    assert all("alert/no_signal" not in row for row in metrics(run)) and not alerts(run)
    assert run.read_manifest()["no_signal"] is None


# No model of the lab reads them.
UNREAD = ["task=math", "task.style=boxed"]


def test_prompts_that_the_model_cannot_read_are_refused_and_an_evaluation_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for overrides in (UNREAD, ["task=countdown", "task.style=tiny_zero"], ["task=kk", "task.style=logic_rl"]):
        with pytest.raises(UserError, match=r"\d\d% of the prompts' tokens"):
            trained(tmp_path, "unknown_tokens_error", "rollout.max_new_tokens=1", *overrides)
    assert not (tmp_path / "unknown_tokens_error").exists()
    asked = ["eval", "lab", "--problems", "2", "--samples", "1", "--pass-at", "1", f"run.dir={tmp_path}"]
    asked += ["eval.max_new_tokens=2"]
    assert rlvr([*asked, "--output", str(tmp_path / "a")]) == 0
    assert "prompts' tokens" not in capsys.readouterr().err
    assert rlvr([*asked, "--benchmark", "math-story-gen", "task.style=boxed", "--output", str(tmp_path / "b")]) == 0
    assert "prompts' tokens" in capsys.readouterr().err


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Recorder.on_step_end

    def spoiled(self: Recorder, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        record(self, args, state, control, **kwargs)
        if state.global_step == 2:
            with torch.no_grad():
                next(iter(self.trainer.model.parameters())).view(-1)[0] = torch.inf

    monkeypatch.setattr(Recorder, "on_step_end", spoiled)
    with pytest.raises(RunError, match=r"step 2: .*not finite.*no checkpoint was written"):
        trained(tmp_path, "spoiled", "train.rollouts=3")
    run = RunDir(tmp_path / "spoiled")
    assert [path.name for path in run.checkpoints_dir.iterdir()] == ["step-1"]
    assert run.read_manifest()["status"] == "failed"
    monkeypatch.undo()
    assert resume(run).status == "finished"
