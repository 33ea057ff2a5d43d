"""What is declared of metrics, and that sweeps, comparisons and charts go by it."""

from __future__ import annotations

import pytest

from rlvr_cli.compare.sentences import amount, comparative
from rlvr_cli.evaluation.metrics import is_share
from rlvr_cli.results.curves import learning_curves
from rlvr_cli.results.metrics import METRICS, accuracy_of, metric
from rlvr_cli.results.values import higher_is_better, unit
from rlvr_cli.sweeps.objective import OF_SFT, OF_TRAINING, PLAIN, _maximize
from rlvr_cli.sweeps.spec import ObjectiveSpec


@pytest.mark.parametrize("name", [*OF_TRAINING, *OF_SFT, *PLAIN])
def test_every_metric_that_can_be_an_objective_is_declared(name: str) -> None:
    assert name in METRICS


@pytest.mark.parametrize(
    ("name", "better", "of"),
    [
        ("avg@4", True, "points"),
        ("pass@32", True, "points"),
        ("greedy", True, "points"),
        ("truncated", False, "points"),
        ("reason/correct", True, "points"),
        ("reason/wrong", None, "points"),
        ("reward", True, "of reward"),
        ("reward/format", True, "of reward"),
        ("length", None, "tokens"),
        ("loss", False, "nats"),
        ("entropy", None, "nats"),
        ("grad_norm", None, ""),
    ],
)
def test_one_declaration_decides_everywhere(name: str, better: bool | None, of: str) -> None:
    assert higher_is_better(name) is better
    assert _maximize(ObjectiveSpec(metric=name)) is better
    assert unit(name) == (100.0 if is_share(name) else 1.0, of)
    if better is not None:
        assert comparative(name, 0.1) == ("better than" if better else "worse than")
        assert comparative(name, -0.1) == ("worse than" if better else "better than")


def test_a_difference_of_a_metric_without_a_unit_is_a_bare_number() -> None:
    assert amount("grad_norm", 0.25) == "0.25"
    assert amount("truncated", 0.02) == "2 points"


def test_accuracy_is_avg_at_n_or_says_that_it_is_greedy() -> None:
    assert accuracy_of(["greedy", "avg@4", "pass@4"]) == "avg@4"
    assert accuracy_of(["greedy", "reward"]) == "greedy"
    both = {"greedy": 0.9, "avg@4": 0.7}
    (curve,) = learning_curves([{"rollout": 0, "eval": both}, {"rollout": 1}])
    assert (curve.name, curve.points) == ("held-out accuracy (avg@4)", ((0, 0.7),))
    assert metric("greedy").label == "greedy accuracy"
