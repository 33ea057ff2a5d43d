"""What a person sees of a training, on a terminal of 80 columns and elsewhere, and what stays when it ends."""

from __future__ import annotations

import io
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr_cli.core.terminal import Marked
from rlvr_cli.launch.stopping import StopRequest
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.stats.intervals import share_interval
from rlvr_cli.training.outcome import outcome_lines
from rlvr_cli.training.progress import Reporter
from tests.compare.made_runs import evaluate
from tests.runs.folders import make_run

ROW = {"step": 1, "rollout": 0, "last_update": True, "reward": 1.25, "accuracy": 0.5, "entropy": 0.1, "length": 54.5}
MORE = {
    "clip_frac/low": 0.0,
    "clip_frac/high": 0.1,
    "grad_norm": 0.1,
    "alert/length_collapse": 1,
    "verifier/timeout": 0.25,
}
HELD_OUT: dict[str, Any] = {
    "greedy": {"value": 0.875, "low": 0.606, "high": 0.97},
    "avg@4": {"value": 0.578, "low": 0.377, "high": 0.756},
    "length": {"value": 48.6, "low": None, "high": None},
}


def shown(folder: Path, *, terminal: bool, columns: int = 80) -> tuple[str, str]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=columns, height=30, color_system=None)
    stop = StopRequest()
    with Reporter(folder / "log.txt", console=console, rollouts=60, steps=60) as reporter, stop:
        reporter.follow(stop)
        reporter.step({**ROW, **MORE}, {"tokens_per_second": 1234.0})
        reporter.held_out(1, HELD_OUT)
        os.kill(os.getpid(), signal.SIGINT)
        reporter.step({**ROW, "step": 2, "rollout": 1, **MORE}, {"tokens_per_second": 1234.0})
        reporter.end()
        reporter.message("saved at step 2; continue with: rlvr train --resume runs/one")
    return stream.getvalue(), (folder / "log.txt").read_text()


def test_the_display_keeps_its_last_numbers_within_80_columns(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, log = shown(tmp_path, terminal=True)
    assert capfd.readouterr().err == "" and "SIGINT: saving after this step" in text
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).split("training ")[-1].replace("\r", "").splitlines()
    assert all(len(line) <= 80 for line in last)
    assert "2/60 rollouts" in last[0] and "left" in last[0]
    words = " ".join(last).split()
    for word in ("reward", "1.250", "accuracy", "grad", "10.00%", "25.00%", "collapse", "1,234", "[0.377,", "0.756],"):
        assert word in words
    assert last[-1] == "saved at step 2; continue with: rlvr train --resume runs/one"
    assert "held-out after rollout 1: avg@4 0.578 [0.377, 0.756], greedy accuracy 0.875" in log


def made(tmp_path: Path, *right: list[int]) -> RunDir:
    run = make_run(tmp_path, "one")
    run.metrics_path.write_text(
        '{"step": 1, "rollout": 0, "accuracy": 0.25, "accuracy/se": 0.05}\n'
        '{"step": 2, "rollout": 1, "accuracy": 0.75, "accuracy/se": 0.5}\n'
    )
    for number, counts in enumerate(right, start=1):
        folder = run.held_out_dir / f"rollout-{number:06d}"
        evaluate(run, counts, step=number, split="dev", folder=folder, rollouts=number)
    return run


def test_a_finished_training_says_before_and_after(tmp_path: Path) -> None:
    (line,) = map(str, outcome_lines(made(tmp_path / "none"), 8))
    assert "0.250 [0.152, 0.383] in rollout 1, 0.750 [0.067, 0.992] in rollout 2" in line
    for name, before, after, verdict, style in (
        ("better", [0] * 12, [3, 4] * 6, "better", "good"),
        ("worse", [3, 4] * 6, [0] * 12, "worse", "bad"),
        ("same", [1, 2] * 6, [2, 1] * 6, "within noise", None),
    ):
        measured, difference = outcome_lines(made(tmp_path / name, before, [2] * 12, after), 8)
        assert all(part in str(measured) for part in ("(dev, 12 problems)", "after rollout 1", "after rollout 3"))
        assert str(difference).startswith("difference ") and str(difference).endswith(f": {verdict}")
        assert (difference.style if isinstance(difference, Marked) else None) == style


def test_no_right_completion_of_a_few_problems_is_not_certainty(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.metrics_path.write_text('{"step": 1, "rollout": 0, "accuracy": 0.0, "accuracy/se": 0.0}\n')
    (line,) = map(str, outcome_lines(run, 4))
    low, high = share_interval([0.0] * 4).low, share_interval([0.0] * 4).high
    assert low == 0.0 and high is not None and high > 0.5
    assert f"training accuracy: 0.000 [0.000, {high:.3f}] in rollout 1" in line


def test_a_damaged_evaluation_does_not_fail_a_finished_training(tmp_path: Path) -> None:
    run = made(tmp_path, [1] * 6, [2] * 6)
    (run.held_out_dir / "rollout-000001" / "problems.jsonl").write_text("")
    (line,) = map(str, outcome_lines(run, 8))
    assert "can't be compared" in line
