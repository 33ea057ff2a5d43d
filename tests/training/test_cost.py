"""What a method costs over GRPO, counted: rows through forward passes, and FLOPs of matrix products."""

from __future__ import annotations

import pytest

from benchmarks.methods_cost import GROUP, PROMPTS, Cost, Recorded, cost

ROWS = PROMPTS * GROUP


@pytest.fixture(scope="module")
def rollouts() -> Recorded:
    return Recorded()


@pytest.fixture(scope="module")
def grpo(rollouts: Recorded) -> dict[int, Cost]:
    return {updates: cost("grpo", updates, rollouts) for updates in (1, 4)}


def passes(found: Cost) -> tuple[float, float, float]:
    return found.with_gradient / ROWS, found.without_gradient / ROWS, found.reference / ROWS


def test_grpo_takes_old_log_probs_only_where_the_policy_will_have_moved(grpo: dict[int, Cost]) -> None:
    assert passes(grpo[1]) == (1, 0, 0)
    assert passes(grpo[4]) == (1, 0.75, 0)


@pytest.mark.parametrize("updates", [4])
@pytest.mark.parametrize("name", ["grpo+reweight", "dgpo", "gspo"])
def test_other_weights_cost_no_forward_and_nothing_to_speak_of(
    rollouts: Recorded, grpo: dict[int, Cost], name: str, updates: int
) -> None:
    found = cost(name, updates, rollouts)
    assert passes(found) == passes(grpo[updates])
    assert found.flops <= 1.02 * grpo[updates].flops


def test_acpo_looks_at_each_step_once_before_it_unless_nothing_has_moved(
    rollouts: Recorded, grpo: dict[int, Cost]
) -> None:
    once, four = cost("acpo", 1, rollouts), cost("acpo", 4, rollouts)
    assert passes(once) == (1, 0, 0) and once.flops <= 1.02 * grpo[1].flops
    assert passes(four) == (1, 0.75 + 0.75, 0), "old log-probs and the spread, of all steps but the first"


def test_lopti_makes_as_few_forwards_as_its_algorithm_allows(rollouts: Recorded, grpo: dict[int, Cost]) -> None:
    """Two passes with gradient; with one step a pass, the first pass gives the old log-probs of the second."""
    once, four = cost("grpo+lopti", 1, rollouts), cost("grpo+lopti", 4, rollouts)
    assert passes(once) == (2, 0, 0) and once.flops <= 2.02 * grpo[1].flops
    assert passes(four) == (2, 0.75, 0)
    assert passes(cost("grpo+low-only", 1, rollouts)) == (1, 0, 0)


def test_what_looks_at_the_whole_rollout_pays_one_forward(rollouts: Recorded) -> None:
    for name in ("gtpo", "grpo+high-entropy", "ppo"):
        assert passes(cost(name, 1, rollouts)) == (1, 1, 0)
    assert passes(cost("reinforce-pp", 1, rollouts)) == (1, 1, 1)
    assert passes(cost("grpo", 1, rollouts, "method.kl.beta=0.1")) == (1, 0, 1)
