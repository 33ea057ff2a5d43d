"""The order of the training problems, and a curriculum by pass rate."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.shares import spread


def problem_order(problems: int, rows: int, seed: int, groups: Sequence[str] | None = None) -> list[int]:
    """Return ``rows`` problem indices, permuted again in each epoch; a shorter order is a prefix of a longer one.

    groups: of each problem, whose shares every rollout keeps, up to rounding.
    """
    epochs = (_epoch_order(problems, epoch, seed, groups) for epoch in itertools.count())
    return list(itertools.islice(itertools.chain.from_iterable(epochs), rows))


def _epoch_order(problems: int, epoch: int, seed: int, groups: Sequence[str] | None) -> list[int]:
    indices = list(range(problems))
    random.Random(stream_seed(seed, "problem-order", epoch)).shuffle(indices)
    return indices if groups is None else spread(indices, [groups[index] for index in indices])


class Curriculum:
    """Chooses a rollout's problems by the verdicts on earlier rollouts; every process makes the same choice.

    It walks through `problem_order`. A *settled* problem, of whose completions all or none were correct at its last
    visit, is passed over with probability 1 - ``weight``; so is one that the rollout already has. If no others are left
    (in two epochs), it takes settled problems, and then repeated ones.

    Attributes:
        position: in the order. passed: settled problems passed over in the last choice.
    """

    def __init__(self, problems: int, weight: float, seed: int, groups: Sequence[str] | None = None) -> None:
        self.problems, self.weight, self.seed = problems, weight, seed
        self._epoch = lru_cache(maxsize=1)(lambda epoch: _epoch_order(problems, epoch, seed, groups))
        self.position = self.passed = 0
        self._settled: set[int] = set()

    def choose(self, rollout: int, count: int) -> list[int]:
        rng = random.Random(stream_seed(self.seed, "curriculum", rollout))
        chosen: list[int] = []
        self.passed = in_a_row = 0
        while len(chosen) < count:
            epoch, index = divmod(self.position, self.problems)
            problem = self._epoch(epoch)[index]
            self.position += 1
            drop = problem in self._settled and rng.random() >= self.weight
            if (drop and in_a_row < 2 * self.problems) or (problem in chosen and in_a_row < 4 * self.problems):
                self.passed += drop
                in_a_row += 1
            else:
                chosen.append(problem)
                in_a_row = 0
        return chosen

    def record(self, problem: int, correct: Sequence[bool]) -> None:
        """Record the verdicts of a visit; none if no completion could be judged."""
        self._settled.discard(problem)
        if correct and len(set(correct)) == 1:
            self._settled.add(problem)

    def summary(self) -> dict[str, float]:
        return {"curriculum/settled": len(self._settled) / self.problems, "curriculum/passed": float(self.passed)}

    def state(self) -> dict[str, Any]:
        return {"position": self.position, "settled": sorted(self._settled)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.position, self._settled = state["position"], set(state["settled"])
