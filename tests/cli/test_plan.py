"""`rlvr plan` shows what a training would do, before it does it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlvr_cli.cli.app import run


def plan(capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, Any]:
    assert run(["plan", "--json", *overrides]) == 0
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
    numbers = plan(capsys, f"update.updates_per_rollout={updates}", f"update.epochs={epochs}", "train.rollouts=7")
    assert numbers["steps_per_rollout"] == steps
    assert numbers["steps_total"] == 7 * steps
    assert numbers["policy_age"]["mean"] == mean_age
    assert numbers["policy_age"]["largest"] == largest_age


def test_counts(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = plan(
        capsys,
        "rollout={prompts: 6, group_size: 4, max_new_tokens: 100}",
        "update={updates_per_rollout: 3, micro_batch: 2}",
        "train.rollouts=5",
        "task.problems=60",
        "checkpoint.every=4",
        "eval={every: 2, problems: 10, samples: 32, greedy: true}",
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
    assert numbers["eval_completions"] == 330


def test_the_human_view_says_whether_it_is_on_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan"]) == 0
    assert "On-policy" in capsys.readouterr().out
    assert run(["plan", "update.updates_per_rollout=4"]) == 0
    assert "1.5 updates old on average" in capsys.readouterr().out
