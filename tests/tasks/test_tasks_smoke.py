"""What `make tasks-smoke` checks: metrics that are missing, not finite, or do not add up are found."""

import math

import pytest

from benchmarks import tasks_smoke

REASONS = ("correct", "wrong")
STEP = {
    "step": 1,
    "reward": 0.5,
    "accuracy": 0.5,
    "length": 10.0,
    "grad_norm": 1.0,
    "entropy": 0.1,
    "unscorable": 0.0,
    "reason/correct": 0.5,
    "reason/wrong": 0.5,
}
EVALUATION = {
    "problems": 4,
    "samples": 2,
    "metrics": {
        name: {"value": 0.5}
        for name in ("greedy", "avg@2", "pass@2", "reward", "reason/correct", "reason/wrong", "length")
    },
}


def test_whole_metrics_pass():
    assert tasks_smoke.check_step(STEP, REASONS) == []
    assert tasks_smoke.check_evaluation(EVALUATION, REASONS, 4) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": math.nan}, "reward is nan"),
        ({"reward": None}, "reward is None"),
        ({"grad_norm": math.inf}, "grad_norm is inf"),
        ({"reason/wrong": 0.25}, r"reasons sum to 0\.75"),
    ],
)
def test_a_step_with_unfit_metrics_is_named(change, message):
    with pytest.raises(AssertionError, match=message):
        assert tasks_smoke.check_step(STEP | change, REASONS) == []


def test_a_step_without_a_metric_is_named():
    without = {name: value for name, value in STEP.items() if name != "entropy"}
    assert tasks_smoke.check_step(without, REASONS) == ["step 1: no entropy"]


def test_a_reward_may_be_missing_where_nothing_could_be_scored():
    assert tasks_smoke.check_step(STEP | {"reward": None, "unscorable": 1.0}, REASONS) == []


def test_an_evaluation_of_too_few_problems_or_without_a_metric_is_named():
    assert tasks_smoke.check_evaluation(EVALUATION, REASONS, 8) == ["eval: 4 problems with 2 samples"]
    metrics = {name: value for name, value in EVALUATION["metrics"].items() if name != "pass@2"}
    assert tasks_smoke.check_evaluation(EVALUATION | {"metrics": metrics}, REASONS, 4) == ["eval: no pass@2"]
    metrics = EVALUATION["metrics"] | {"reward": {"value": math.nan}}
    assert tasks_smoke.check_evaluation(EVALUATION | {"metrics": metrics}, REASONS, 4) == ["eval: reward is nan"]


def test_a_command_that_fails_is_told_with_its_exit_code():
    _, wrong = tasks_smoke.command(["train", "--task", "chess"])
    assert wrong is not None and wrong.startswith("rlvr train ended with 2")
