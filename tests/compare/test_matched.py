"""Learning curves at a common budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.runs.folder import RunDir
from tests.compare.made_runs import make_run

PROBLEMS = 12
Compared = Callable[..., dict[str, Any]]


def arm(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in found["arms"] if one["arm"] == name)


def counts(share: float) -> list[int]:
    """Right samples of each problem, of 4, with this mean share."""
    total = round(share * 4 * PROBLEMS)
    return [total // PROBLEMS + (place < total % PROBLEMS) for place in range(PROBLEMS)]


@pytest.fixture
def curves(root: Path) -> Path:
    """Four rollouts; grpo rises 1/4 a rollout, lopti is there at once. An update of each takes 2 s, a rollout 1 s more,
    and lopti makes two of them on a rollout."""
    for seed in range(2):
        rising = {rollouts: counts(rollouts / 4) for rollouts in (1, 2, 3, 4)}
        early = {1: counts(0.5), 2: counts(0.75), 3: counts(1.0), 4: counts(0.75)}
        make_run(root, f"grpo{seed}", seed=seed, held_out=rising)
        make_run(root, f"lopti{seed}", method="lopti", seed=seed, held_out=early)
    return root


def test_equal_rollouts(curves: Path, compared: Compared) -> None:
    found = compared("grpo*", "lopti*", "--match", "rollouts@0.75")
    assert found["match"] == {"budget": "rollouts", "start": 1, "end": 4}
    assert (found["split"], found["metric"]) == ("dev", "avg@4")
    lopti, grpo = arm(found, "lopti"), arm(found, "grpo")
    assert lopti["difference"]["value"] == pytest.approx(-0.25)
    assert lopti["cost"]["updates"] == 2
    assert lopti["mean"]["value"] == pytest.approx(0.75)
    assert lopti["curve"]["area"]["value"] == pytest.approx(0.75 + 0.125 / 3)
    assert grpo["curve"]["area"]["value"] == pytest.approx(0.625)
    assert (lopti["curve"]["reached"], grpo["curve"]["reached"]) == ([2, 2], [3, 3])
    assert lopti["curve"]["difference"]["value"] == pytest.approx(0.125 + 0.125 / 3)


def test_equal_updates_and_equal_seconds_are_other_comparisons(curves: Path, compared: Compared) -> None:
    updates = compared("grpo*", "lopti*", "--match", "updates")
    # After 4 updates lopti has made 2 rollouts.
    assert updates["match"]["end"] == 4
    assert arm(updates, "lopti")["difference"]["value"] == pytest.approx(0.75 - 1)
    assert arm(updates, "lopti")["spent"]["rollouts"] == 2
    seconds = compared("grpo*", "lopti*", "--match", "seconds")
    # grpo spent 3 s a rollout, 12 s in all; lopti, 5 s a rollout, is 2/5 of the way from its second to its third.
    assert seconds["match"]["end"] == 12
    assert arm(seconds, "lopti")["mean"]["value"] == pytest.approx(0.75 + 0.4 * 0.25)


def test_curves_that_share_no_budget_or_are_absent(root: Path, refused: Callable[..., str], curves: Path) -> None:
    make_run(root, "late", method="dapo", overrides=["train.rollouts=9"], held_out={9: counts(0.5)})
    make_run(root, "none", method="dgpo", overrides=["validation.every=0"])
    said = refused("grpo0", "late", "none", "--match", "rollouts", "--benchmark", "kk-gen")
    assert "none: has no held-out evaluations from training (validation.every=0)" in said
    assert "--benchmark and --match cannot be combined" in said
    assert "Did you mean `updates`?" in refused("grpo0", "lopti0", "--match", "update")
    said = refused("grpo0", "late", "--match", "rollouts")
    assert "no common budget" in said and "first evaluated after 9 rollouts" in said and "last after 4" in said


def test_an_evaluation_whose_step_is_not_recorded_waits_for_it(
    curves: Path, compared: Callable[..., dict[str, Any]], refused: Callable[..., str]
) -> None:
    """An evaluation is written before the line of its step, and a run can be killed between the two."""
    for path in (curves / "grpo0" / "metrics.jsonl", curves / "grpo0" / "timings.jsonl"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    said = refused("grpo0", "lopti0", "--match", "rollouts")
    assert "has no rollout 4. It was altered" in said, "a finished run has all its steps"
    RunDir(curves / "grpo0").update_manifest(status="interrupted")
    assert compared("grpo0", "lopti0", "--match", "rollouts", "--unfinished")["match"]["end"] == 3
