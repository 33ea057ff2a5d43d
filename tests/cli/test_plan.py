"""`rlvr plan` shows what a training would do, before it does it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run


def plan(capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, Any]:
    assert run(["plan", "--format=json", *overrides]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize(
    # updates per rollout, epochs -> optimizer steps from one rollout, mean and largest age of the data
    ("updates", "epochs", "steps", "mean_age", "largest_age"),
    [(1, 1, 1, 0.0, 0), (4, 1, 4, 1.5, 3), (2, 2, 4, 1.5, 3), (16, 1, 16, 7.5, 15), (1, 3, 3, 1.0, 2)],
)
def test_how_far_off_policy(
    updates: int, epochs: int, steps: int, mean_age: float, largest_age: int, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = plan(capsys, f"update.mini_batches={updates}", f"update.epochs={epochs}", "train.rollouts=7")
    assert numbers["steps_per_rollout"] == steps
    assert numbers["steps_total"] == 7 * steps
    assert numbers["policy_age"]["mean"] == mean_age
    assert numbers["policy_age"]["largest"] == largest_age


@pytest.mark.parametrize(
    # method, updates per rollout, epochs -> passes, steps from one rollout
    ("method", "updates", "epochs", "passes", "steps"),
    [("lopti", 1, 1, 2, 2), ("dgpo+lopti", 4, 2, 2, 16), ("grpo+low-only", 4, 1, 1, 4), ("sft", 1, 1, 1, 1)],
)
def test_every_pass_of_the_method_counts(
    method: str, updates: int, epochs: int, passes: int, steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [f"update.mini_batches={updates}", f"update.epochs={epochs}", "train.rollouts=7"]
    numbers = plan(capsys, "--method", method, *sizes)
    assert (numbers["passes"], numbers["steps_per_rollout"], numbers["steps_total"]) == (passes, steps, 7 * steps)
    assert method == "sft" or numbers["policy_age"]["largest"] == steps - 1


@pytest.mark.parametrize(
    "arguments", [["--method", "grpo,DAPO,dgpo"], ["--method", "grpo", "--method", "dapo", "--method", "dgpo"]]
)
def test_methods_with_one_gradient_are_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "With one update per rollout the ratio is 1: grpo, dapo and dgpo are the same gradient."
    assert run(["plan", *arguments]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith(f"\n{sentence}\n")
    numbers = plan(capsys, *arguments)
    assert [arm["method"] for arm in numbers["arms"]] == ["grpo", "dapo", "dgpo"]
    assert numbers["same_gradient"] == [{"methods": ["grpo", "dapo", "dgpo"], "when": "one_step", "note": sentence}]


def test_counts(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = plan(
        capsys,
        "rollout={prompts: 6, group_size: 4, max_new_tokens: 100}",
        "update={mini_batches: 3, micro_batch: 2}",
        "train.rollouts=5",
        "task.train_size=60",
        "checkpoint.every=4",
        "validation={every: 2, problems: 10, samples: 4}",
        "eval={problems: 10, samples: 32, greedy: true}",
    )
    assert numbers["completions_per_rollout"] == 24
    assert numbers["completions_per_step"] == 8
    assert numbers["micro_batches_per_step"] == 4
    assert numbers["steps_total"] == 15
    assert numbers["completions_total"] == 120
    assert numbers["completion_tokens_at_most"] == 12_000
    assert numbers["visits_per_problem"] == 0.5
    assert numbers["checkpoints_written"] == 4  # steps 4, 8, 12 and the last, 15
    assert numbers["evaluations"] == 2
    assert (numbers["validation_completions"], numbers["eval_completions"]) == (50, 330)
    assert numbers["rollout_tokens_at_most"] * numbers["rollouts"] == numbers["completion_tokens_at_most"]


def test_the_evaluation_of_a_run_with_benchmarks_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """AIME 2024: 30 problems, 32 samples and the greedy completion; evaluations on the way are the run's own."""
    numbers = plan(capsys, "eval.benchmark=[aime24]", "eval={problems: 10, samples: 32}")
    assert numbers["eval_benchmarks"] == ["aime24"]
    assert (numbers["eval_completions"], numbers["benchmark_completions"]) == (330, 990)


def test_sft_draws_demonstrations_and_samples_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = plan(capsys, "--method", "sft", "method.demonstrations=512", "update.epochs=2")
    assert (numbers["demonstrations"], numbers["data"], numbers["visits_per_demonstration"]) == (512, None, 15.0)
    assert (numbers["completions_total"], numbers["steps_total"]) == (7680, 120)
    assert numbers["policy_age"] is numbers["problems"] is numbers["visits_per_problem"] is None
    assert run(["plan", "--method", "sft", "method.demonstrations=512"]) == 0
    shown = capsys.readouterr().out
    assert "512" in shown and "worked solutions of the task, each drawn 15.00 times on average" in shown
    assert "samples nothing" in shown and "-policy" not in shown and "problems" not in shown
    # Only of an evaluation, and of the parts of demonstrations.
    assert shown.count("completions") == 2


def test_a_dry_run_of_train_is_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for form in ("--format=table", "--json"):
        shown = []
        for command in (["train", "--dry-run"], ["plan"]):
            assert run([*command, "--processes", "2", "update.mini_batches=2", form]) == 0
            shown.append(capsys.readouterr().out)
        assert shown[0] == shown[1] != ""
    assert list(tmp_path.iterdir()) == []
