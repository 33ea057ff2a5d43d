"""Scripted rollouts: random token ids of given lengths, and rewards with a given share of groups that teach nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch

from rlvr_cli.training.rollouts import RolloutBatch

END = 1
# The first ids of the lab's tokenizer are padding, end and unknown.
FIRST_ID = 3
# Of log-normal lengths: the longest of 128 rows is then about five times the mean, unless it is cut.
SIGMA = 0.8
SPREADS = ("fixed", "uniform", "log-normal")


@dataclass(frozen=True)
class Rollout:
    """The rows of one rollout, and how they are trained.

    Attributes:
        rows, group: completions, and those of one prompt.
        prompt: mean length of the prompts; each is up to a quarter longer or shorter.
        mean, longest: length of the completions, the end of sequence included.
        spread: of these lengths: ``fixed``, ``uniform`` (1 to 2 mean - 1) or ``log-normal``; the mean stays.
        zero: share of the groups whose rewards are all equal: their advantages are 0.
        part: rows of one forward pass; ours puts at most as many tokens in one as so many of the longest rows have.
        updates: optimizer steps on the rollout.
    """

    rows: int
    group: int
    prompt: int
    mean: int
    longest: int
    spread: str = "log-normal"
    zero: float = 0.0
    part: int = 16
    updates: int = 1


def completion_lengths(rollout: Rollout, generator: torch.Generator) -> list[int]:
    """(rows,) lengths in random order: evenly spaced quantiles of the distribution, scaled until the mean is right."""
    places = [(row + 0.5) / rollout.rows for row in range(rollout.rows)]
    if rollout.spread == "fixed":
        raw = [1.0] * rollout.rows
    elif rollout.spread == "uniform":
        raw = places
    else:
        normal = NormalDist(0.0, SIGMA)
        raw = [2.718281828 ** normal.inv_cdf(place) for place in places]
    low, high = 0.0, rollout.longest / min(raw)
    for _ in range(60):
        scale = (low + high) / 2
        lengths = [min(max(round(scale * length), 1), rollout.longest) for length in raw]
        low, high = (scale, high) if sum(lengths) < rollout.mean * rollout.rows else (low, scale)
    return [lengths[place] for place in torch.randperm(rollout.rows, generator=generator).tolist()]


def group_rewards(rollout: Rollout, generator: torch.Generator) -> list[float]:
    """(rows,) rewards of 0 or 1: all equal in ``zero`` of the groups, both of them in every other."""
    groups = rollout.rows // rollout.group
    equal = round(rollout.zero * groups)
    rewards: list[float] = []
    for place in torch.randperm(groups, generator=generator).tolist():
        if place < equal:
            rewards += [float(place % 2)] * rollout.group
            continue
        right = int(torch.randint(1, rollout.group, (), generator=generator))
        order = torch.randperm(rollout.group, generator=generator).tolist()
        rewards += [float(row < right) for row in order]
    return rewards


class Script:
    """One rollout, handed out again and again (as `rlvr_cli.training.rollouts.RolloutSource`).

    Attributes:
        told: what a sampler would tell of the tokens: log-probs and entropies, row by row.
    """

    told: tuple[list[list[float]], list[list[float]] | None] = ([], None)

    def __init__(self, rollout: Rollout, vocabulary: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def ids(length: int) -> list[int]:
            return torch.randint(FIRST_ID, vocabulary, (length,), generator=generator).tolist()

        self.prompts: list[list[int]] = []
        quarter = rollout.prompt // 4
        for _ in range(rollout.rows // rollout.group):
            shift = int(torch.randint(-quarter, quarter + 1, (), generator=generator))
            self.prompts += [ids(rollout.prompt + shift)] * rollout.group
        lengths = completion_lengths(rollout, generator)
        self.completions = [[*ids(length - 1), END] for length in lengths]
        self.rewards = group_rewards(rollout, generator)

    @property
    def tokens(self) -> int:
        """Tokens of the prompts and completions, each row with its prompt."""
        return sum(map(len, self.prompts)) + sum(map(len, self.completions))

    def collect(self, rollout: int, problems: Sequence[int], first_row: int) -> RolloutBatch:
        log_probs, entropies = self.told
        correct = [reward > 0 for reward in self.rewards]
        return RolloutBatch(self.prompts, self.completions, log_probs, entropies, rewards=self.rewards, correct=correct)

    def store(self, *columns: Any, **others: Any) -> None:
        pass
