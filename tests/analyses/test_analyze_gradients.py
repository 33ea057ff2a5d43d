"""`rlvr analyze probability` and `ratio` on a run of the lab, from the command line to the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli.analyses.method_step import MethodStep
from rlvr_cli.analyses.replay import ReplayedUpdates
from rlvr_cli.analyses.saved_rollout import find_saved_rollout
from rlvr_cli.analyses.scoring import load_policy, score_rollout
from rlvr_cli.methods.method import Method
from tests.analyses.lab_runs import analyzed, trained

SETTINGS = [
    "method=lopti",
    "train.rollouts=2",
    "rollout.prompts=4",
    "rollout.max_new_tokens=24",
    "update.mini_batches=2",
    # So that a rate that falls and a weight decay are made again too.
    "optimizer.lr_schedule=linear",
    "optimizer.weight_decay=0.1",
    "optimizer.lr=1e-3",
    "checkpoint.every=1",
    "checkpoint.keep=9",
    "task.train_size=64",
    "run.threads=1",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory, SETTINGS)


@pytest.mark.parametrize("rollout", [0, 1])
def test_the_updates_made_again_are_those_of_the_run(root: Path, rollout: int) -> None:
    """Lopti: the low pass over both parts, then the high one; with AdamW's state of the second rollout's beginning."""
    saved = find_saved_rollout("lab", root, rollout=rollout)
    config = saved.config.method
    assert isinstance(config, Method)
    policy = load_policy(saved, saved.old)
    scored = score_rollout(saved, [config.with_max_length(24)], policy).scored
    step = MethodStep.of(config.with_max_length(24), scored)
    start = step.at(scored.old_log_probs, scored.rollout.entropies)
    replay = ReplayedUpdates(policy, saved, start, "adamw", None, 2)
    assert replay.has_state == (rollout == 1)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    for made in replay:
        kept = find_saved_rollout("lab", root, rollout=rollout, step=saved.sampled_after + made).current
        expected = load_policy(saved, kept).model.state_dict()
        for name, value in policy.model.state_dict().items():
            # The run took old log-probs from the sampler; AdamW makes steps of one size of gradients of any size.
            apart, moved = (value - expected[name]).norm(), (expected[name] - before[name]).norm()
            assert apart <= 1e-2 * moved, f"update {made}: {name}"
        if made == 4:
            break


def test_ratio(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "ratio.png"
    found = analyzed(capsys, root, "ratio", "updates=[1, 4]", "--rollout", "1", "--step", "8", "--output", str(figure))
    assert figure.stat().st_size > 10_000
    rows = [(row["policy"], row["updates"]) for row in found["updates"]]
    assert rows == [("replayed", 0), ("replayed", 1), ("replayed", 4), ("checkpoint", 4)]
    # All four updates of the run are made again, and their policy is the checkpoint's.
    summary = found["summary"]
    assert summary["checkpoint"] == 8
    spreads = {
        policy: [row["spread"] for row in found["bins"] if (row["policy"], row["updates"]) == (policy, 4)]
        for policy in ("replayed", "checkpoint")
    }
    assert spreads["replayed"] == pytest.approx(spreads["checkpoint"], rel=0.02, abs=1e-4)
    assert summary["spread_low_over_high"] > 1
    assert summary["spread_growth"] > 1
    assert summary["dominance_first"] > 0
    assert summary["reversal_kappa_magnitude"] is None
