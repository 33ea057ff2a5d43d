"""What a finished training says of before and after."""

from __future__ import annotations

from pathlib import Path

from rlvr_cli.core.terminal import Marked
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training.outcome import outcome_lines
from tests.compare.made_runs import evaluate
from tests.runs.folders import make_run


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


def test_a_damaged_evaluation_does_not_fail_a_finished_training(tmp_path: Path) -> None:
    run = made(tmp_path, [1] * 6, [2] * 6)
    (run.held_out_dir / "rollout-000001" / "problems.jsonl").write_text("")
    (line,) = map(str, outcome_lines(run, 8))
    assert "cannot be compared" in line
