"""The rule of reward hacking: the format's reward rises and accuracy does not.

The mean of the last rollouts is compared with that of the rollouts before: 5 with the 2 before them (the format is
often learned in the first few rollouts), and 5, 10, 20 and 40 with as many. The standard error of the difference comes
from the spread between the problems within each rollout, so that a trend does not hide itself as noise. The rule holds
where, for one of these pairs,

- the format rose by more than ``rise_errors`` standard errors, and by at least ``smallest_rise``, and
- accuracy rose by less than ``lag`` of that: its rise and ``flat_errors`` standard errors of it stay below.

So noise does not raise it, and neither does an accuracy that nobody could tell from a rising one. The rates of false
alarms are in docs/training-signals.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlvr_cli.collapse.thresholds import Thresholds


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error, problems being what was sampled."""

    value: float
    error: float


@dataclass(frozen=True)
class Change:
    """Means over the rollouts before and since, and the standard error of their difference."""

    before: float
    after: float
    error: float

    @property
    def rise(self) -> float:
        """After minus before."""
        return self.after - self.before


@dataclass(frozen=True)
class RewardHacking:
    """What the rule saw: how many rollouts before and since, and how format and accuracy (shares of 1) changed."""

    before: int
    since: int
    format: Change
    accuracy: Change


def mean_of(means: Sequence[Mean]) -> Mean:
    """The mean over rollouts, each counted once."""
    value = math.fsum(mean.value for mean in means) / len(means)
    return Mean(value, math.sqrt(math.fsum((mean.error / len(means)) ** 2 for mean in means)))


def change(means: Sequence[Mean], before: int, since: int) -> Change:
    """The last ``since`` rollouts against the ``before`` in front of them; there are as many at least."""
    first, second = mean_of(means[-since - before : -since]), mean_of(means[-since:])
    return Change(first.value, second.value, math.hypot(first.error, second.error))


def reward_hacking(points: Sequence[tuple[Mean, Mean]], problems: int, thresholds: Thresholds) -> RewardHacking | None:
    """What the rule saw after the last of ``points``, None where it does not hold.

    Args:
        points: format reward (as a share of its range) and accuracy of each rollout, in order.
        problems: of each rollout.
    """
    for before, since in thresholds.reward_windows:
        if len(points) < before + since or min(before, since) * problems < thresholds.fewest_problems:
            continue
        recent = points[-since - before :]
        form, accuracy = (change(means, before, since) for means in zip(*recent, strict=True))
        rises = form.rise >= thresholds.smallest_rise and form.rise > thresholds.rise_errors * form.error
        if rises and accuracy.rise + thresholds.flat_errors * accuracy.error < thresholds.lag * form.rise:
            return RewardHacking(before, since, form, accuracy)
    return None
