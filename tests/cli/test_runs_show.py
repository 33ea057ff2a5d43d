"""`rlvr runs show`: the learning curves of a run that was really trained, and of ones that went wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.cli.runs import curve_rows
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.store.training import ends, filter_step_rows, learning_curves
from tests.launch.launches import NARROW, rows

ENDS = ("first", "last", "least", "greatest")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Three rollouts of two updates, evaluated after the second."""
    root = tmp_path_factory.mktemp("runs")
    evaluated = ["train.rollouts=3", "validation.every=2", "validation.problems=4", "validation.samples=0"]
    assert run(["train", *NARROW, *evaluated, f"run.dir={root}", "run.name=trained"]) == 0
    return RunDir(root / "trained")


def shown(made: RunDir, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["runs", "show", str(made.path), "--format=json"]) == 0
    details: dict[str, Any] = json.loads(capsys.readouterr().out)
    return details


def test_the_curves_are_those_of_metrics_jsonl(trained: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    curves, lines = shown(trained, capsys)["curves"], rows(trained.path)
    assert list(curves) == ["reward", "accuracy", "held-out accuracy (greedy)", "entropy", "length", "gradient norm"]
    assert len(lines) == 6
    for name, key in [("reward", "reward"), ("entropy", "entropy"), ("gradient norm", "grad_norm")]:
        means = [(lines[2 * rollout][key] + lines[2 * rollout + 1][key]) / 2 for rollout in range(3)]
        curve = curves[name]
        assert curve["rollouts"] == [0, 1, 2] and curve["values"] == pytest.approx(means)
        assert [curve[end] for end in ENDS] == pytest.approx([means[0], means[-1], min(means), max(means)])
    assert curves["held-out accuracy (greedy)"]["rollouts"] == [1]
    assert curves["held-out accuracy (greedy)"]["values"] == [lines[3]["eval"]["greedy"]]


def test_completions_are_shown_with_prompt_verdict_and_reason(
    trained: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["runs", "samples", str(trained.path), "--wrong", "-n", "3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("rollout 3, step 6: ")
    assert text.count("not correct (") == text.count("prompt:\n") == text.count("completion:\n") == 3
    assert run(["runs", "samples", str(trained.path), "--step", "2", "-n", "999", "--json"]) == 0
    listed, stored = json.loads(capsys.readouterr().out), read_jsonl(trained.rollouts_dir / "rollout-000000.jsonl")
    assert sorted(one["completion"] for one in listed) == sorted(one["completion"] for one in stored)
    problems = {one["problem"] for one in stored}
    assert {one["problem"] for one in listed[: len(problems)]} == problems
    assert run(["runs", "samples", str(trained.path), "--step", "7"]) == 2
    assert "Allowed: 1 to 6" in capsys.readouterr().err


def curves_of(*lines: dict[str, Any]) -> dict[str, Any]:
    return learning_curves(filter_step_rows(lines))


def test_what_is_no_number_is_left_out() -> None:
    bad = [None, float("nan"), float("inf"), True, "0.5", 10**400]
    lines = [{"rollout": number, "entropy": value} for number, value in enumerate([*bad, 0.25])]
    curves = curves_of(*lines, {"rollout": -1, "entropy": 9.0}, {"entropy": 9.0})
    assert curves == {"entropy": ((6, 0.25),)}
    nothing = curves_of({"rollout": 0, "grad_norm": None})
    assert set(ends(nothing["gradient norm"]).values()) == {None}
    assert curve_rows(nothing, 1, 60) == [("gradient norm", " ", "-", "-", "-", "-")]
