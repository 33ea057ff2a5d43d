"""What a method costs over GRPO, counted: rows through forward passes, and FLOPs of matrix products."""

from __future__ import annotations

import pytest

from benchmarks import methods_cost
from benchmarks.methods_cost import GROUP, Cost, Recorded, cost

PROMPTS, LENGTH = 2, 24
# Method, updates a rollout, passes of each row: with gradient, without, of the reference. Old log-probs cost a pass
# where the policy will have moved; ACPO looks at each step but the first once before it; Lopti makes two passes with
# gradient; REINFORCE++ looks at the whole rollout.
PASSES = [
    ("grpo", 1, (1, 0, 0)),
    ("grpo", 4, (1, 0.75, 0)),
    ("acpo", 4, (1, 0.75 + 0.75, 0)),
    ("grpo+lopti", 1, (2, 0, 0)),
    ("reinforce-pp", 1, (1, 1, 1)),
]


def test_a_method_makes_as_few_forward_passes_as_its_algorithm_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods_cost, "PROMPTS", PROMPTS)
    monkeypatch.setattr(methods_cost, "LENGTH", LENGTH)
    rollouts, rows = Recorded(), PROMPTS * GROUP
    costs: dict[tuple[str, int], Cost] = {}
    for name, updates, passes in PASSES:
        found = costs[name, updates] = cost(name, updates, rollouts)
        counted = (found.with_gradient / rows, found.without_gradient / rows, found.reference / rows)
        assert counted == passes, (name, updates)
    assert costs["grpo+lopti", 1].flops <= 2.02 * costs["grpo", 1].flops
