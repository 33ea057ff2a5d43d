"""The alert of a format that is learned in place of answers: its reward rises and accuracy does not.

The mean of the last rollouts is compared with that of the rollouts before: 5 with the 2 before them (the format is
often learned in the first few rollouts), and 5, 10, 20 and 40 with as many. The standard error of the difference comes
from the spread between the problems within each rollout, so that a trend does not hide itself as noise. The alert is on
where, for one of these pairs,

- the format rose by more than ``RISE_ERRORS`` standard errors, and by at least ``SMALLEST_RISE``, and
- accuracy rose by less than ``LAG`` of that: its rise and ``FLAT_ERRORS`` standard errors of it stay below.

So noise does not raise it, and neither does an accuracy that nobody could tell from a rising one. The rates of false
alarms are in docs/training-signals.md. All is a function of the lines of metrics.jsonl: a resumed run goes on exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ALERT = "alert/format_without_accuracy"

# Rollouts before, and rollouts since.
WINDOWS = ((2, 5), (5, 5), (10, 10), (20, 20), (40, 40))
# A standard error from fewer problems than this in a window is too rough.
FEWEST_PROBLEMS = 16
RISE_ERRORS = 4.5
FLAT_ERRORS = 3.0
SMALLEST_RISE = 0.02
LAG = 0.25
PAUSE = 10


@dataclass(frozen=True)
class Mean:
    """The mean over one rollout with its standard error, problems being what was sampled."""

    value: float
    error: float


Point = tuple[Mean, Mean]


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
class FormatAlert:
    """What raised the alert: how many rollouts before and since, and how format and accuracy (shares of 1) changed."""

    before: int
    since: int
    format: Change
    accuracy: Change

    def __str__(self) -> str:
        return (
            f"alert: the format reward rose from {self.format.before:.1%} to {self.format.after:.1%} of its range "
            f"and accuracy did not ({self.accuracy.before:.1%} to {self.accuracy.after:.1%}), the last {self.since} "
            f"rollouts against the {self.before} before: the model may be learning the format in place of the answers"
        )


def change(means: Sequence[Mean], before: int, since: int) -> Change:
    """The last ``since`` rollouts against the ``before`` in front of them; there are as many at least."""
    first, second = means[-since - before : -since], means[-since:]
    values = [math.fsum(mean.value for mean in part) / len(part) for part in (first, second)]
    variance = math.fsum((mean.error / len(part)) ** 2 for part in (first, second) for mean in part)
    return Change(values[0], values[1], math.sqrt(variance))


def format_without_accuracy(points: Sequence[Point], problems: int) -> FormatAlert | None:
    """The alert after the last of ``points``, None where it is off.

    Args:
        points: format reward (as a share of its range) and accuracy of each rollout, in order.
        problems: of each rollout.
    """
    for before, since in WINDOWS:
        if len(points) < before + since or min(before, since) * problems < FEWEST_PROBLEMS:
            continue
        recent = points[-since - before :]
        form, accuracy = (change(means, before, since) for means in zip(*recent, strict=True))
        rises = form.rise >= SMALLEST_RISE and form.rise > RISE_ERRORS * form.error
        if rises and accuracy.rise + FLAT_ERRORS * accuracy.error < LAG * form.rise:
            return FormatAlert(before, since, form, accuracy)
    return None


class FormatWatch:
    """Follows a run's lines of metrics.jsonl; a run whose task rewards no format has nothing to follow.

    Args:
        problems: of each rollout.
    """

    def __init__(self, problems: int) -> None:
        self.problems = problems
        self._points: dict[int, Point] = {}

    def see(self, row: Mapping[str, Any]) -> None:
        """Take in a line, or what will become one; all lines of a rollout say the same of it.

        A rollout whose completions could none of them be judged says nothing, and neither does one of a single problem.
        """
        if row.get("format/se") is not None and row["unscorable"] < 1:
            accuracy = Mean(row["accuracy"] / (1 - row["unscorable"]), row["accuracy/se"])
            self._points[row["rollout"]] = (Mean(row["format"], row["format/se"]), accuracy)

    def see_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in the lines so far."""
        for row in rows:
            self.see(row)

    def at(self, rollout: int) -> FormatAlert | None:
        """The alert after ``rollout``."""
        known = [point for number, point in self._points.items() if number <= rollout]
        return format_without_accuracy(known[-max(map(sum, WINDOWS)) :], self.problems)

    def starts(self, rollout: int) -> FormatAlert | None:
        """The alert after ``rollout`` if it was off for ``PAUSE`` rollouts before: what a person is told."""
        alert = self.at(rollout)
        earlier = range(max(0, rollout - PAUSE), rollout)
        return None if alert is None or any(self.at(before) for before in earlier) else alert
