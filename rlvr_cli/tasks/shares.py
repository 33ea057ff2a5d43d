"""Tasks stratified by problem size, such as the number of people in a puzzle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import DataSplit, Problem

# Tolerance of the sum of shares.
SHARE_TOLERANCE = 1e-6
Item = TypeVar("Item")
Size = TypeVar("Size", int, str)


def _check_sum(shares: dict[Size, float]) -> dict[Size, float]:
    total = fsum(shares.values())
    if abs(total - 1.0) > SHARE_TOLERANCE:
        scaled = ", ".join(f"{number}: {share / total:.4g}" for number, share in shares.items())
        raise ValueError(f"the shares sum to {total:.6g}; they must sum to 1. In the same proportion: {{{scaled}}}")
    return shares


Share = Annotated[float, Field(gt=0.0, le=1.0)]
SumToOne = AfterValidator(_check_sum)


class StratifiedTask(Task):
    """A task with a share of problems per size, as ``people: {2: 0.5, 3: 0.5}``."""

    # The key of the shares, and the field of a problem's data whose length is the size.
    shares_key: ClassVar[str]
    size_field: ClassVar[str]

    @property
    def shares(self) -> Mapping[int, float]:
        return dict(getattr(self, self.shares_key))

    def problems(self, split: DataSplit, count: int, seed: int) -> list[Problem]:
        if self.is_generated:
            return super().problems(split, count, seed)
        groups: dict[int, list[Problem]] = {size: [] for size in self.shares}
        for problem in self.load(split):
            groups[self._size(problem)].append(problem)
        for size, group in groups.items():
            random.Random(stream_seed(seed, self.name, "rows", split, size)).shuffle(group)
        counts = quotas(self.shares, count, {size: len(group) for size, group in groups.items()})
        chosen = [problem for size, group in groups.items() for problem in group[: counts[size]]]
        return self.shuffle(chosen, split, seed)

    def load(self, split: DataSplit) -> list[Problem]:
        """Return the problems of ``split`` with a size in the shares. Raises UserError without any."""
        problems = super().load(split)
        fitting = [problem for problem in problems if self._size(problem) in self.shares]
        if not fitting:
            key, sizes = self.shares_key, _join_sorted({self._size(problem) for problem in problems})
            raise UserError(
                f"task.data={self.data!r}: no {split} problem with {_join_sorted(self.shares)} {key} (it has {sizes} "
                f"{key}). Set task.{key} to numbers in the data, or choose another split."
            )
        return fitting

    def shuffle(self, problems: list[Problem], split: DataSplit, seed: int) -> list[Problem]:
        random.Random(stream_seed(seed, self.name, split, "order")).shuffle(problems)
        return problems

    def _size(self, problem: Problem) -> int:
        return len(problem.data[self.size_field])


def quotas(shares: Mapping[Size, float], count: int, available: Mapping[Size, int]) -> dict[Size, int]:
    """Apportion ``count`` by ``shares`` (largest remainder method), capped by ``available``."""
    allotted = dict.fromkeys(shares, 0)
    open_sizes = sorted(shares)
    remaining = count
    while remaining and open_sizes:
        total = sum(shares[size] for size in open_sizes)
        exact = {size: remaining * shares[size] / total for size in open_sizes}
        floors = {size: int(exact[size]) for size in open_sizes}
        by_remainder = sorted(open_sizes, key=lambda size: (floors[size] - exact[size], size))
        for size in by_remainder[: remaining - sum(floors.values())]:
            floors[size] += 1
        for size in open_sizes:
            allotted[size] = min(allotted[size] + floors[size], available.get(size, count))
        remaining = count - sum(allotted.values())
        open_sizes = [size for size in open_sizes if allotted[size] < available.get(size, count)]
    return allotted


def spread(items: Sequence[Item], groups: Sequence[str]) -> list[Item]:
    """Return ``items`` in an order of which every stretch has each group's share of all; within a group in order."""
    sizes, seen = Counter(groups), Counter[str]()
    places = []
    for group in groups:
        places.append((seen[group] + 0.5) / sizes[group])
        seen[group] += 1
    return [items[index] for index in sorted(range(len(items)), key=places.__getitem__)]


def _join_sorted(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
