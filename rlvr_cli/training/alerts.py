"""The alert of a format that is learned in place of answers: its reward rises and accuracy does not.

For windows of 10, 20 and 40 rollouts, the mean of the last window is compared with that of the window before. The
spread between the rollouts of each window gives the standard error of the difference (Welch). The alert is on where,
for one of the windows,

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

WINDOWS = (10, 20, 40)
RISE_ERRORS = 4.5
FLAT_ERRORS = 3.0
SMALLEST_RISE = 0.02
LAG = 0.25


@dataclass(frozen=True)
class Change:
    """Means of the window before and of the last one, and the standard error of their difference."""

    before: float
    after: float
    error: float

    @property
    def rise(self) -> float:
        """After minus before."""
        return self.after - self.before


@dataclass(frozen=True)
class FormatAlert:
    """What raised the alert: the window, and how format and accuracy (both in shares of 1) changed."""

    window: int
    format: Change
    accuracy: Change

    def __str__(self) -> str:
        return (
            f"alert: the format reward rose from {self.format.before:.1%} to {self.format.after:.1%} of its range "
            f"and accuracy did not ({self.accuracy.before:.1%} to {self.accuracy.after:.1%}), over {self.window} "
            "rollouts against the same number before: the model may be learning the format in place of the answers"
        )


def change(values: Sequence[float], window: int) -> Change:
    """The last ``window`` of at least twice as many values against those before."""
    before, after = values[-2 * window : -window], values[-window:]
    first, second = math.fsum(before) / window, math.fsum(after) / window
    squares = math.fsum((value - first) ** 2 for value in before) + math.fsum((value - second) ** 2 for value in after)
    return Change(first, second, math.sqrt(squares / (window - 1) / window))


def format_without_accuracy(points: Sequence[tuple[float, float]]) -> FormatAlert | None:
    """The alert after the last of ``points``, None where it is off.

    Args:
        points: format reward (as a share of its range) and accuracy of each rollout, in order.
    """
    for window in WINDOWS:
        if len(points) < 2 * window:
            break
        recent = points[-2 * window :]
        form, accuracy = (change(values, window) for values in zip(*recent, strict=True))
        rises = form.rise >= SMALLEST_RISE and form.rise > RISE_ERRORS * form.error
        if rises and accuracy.rise + FLAT_ERRORS * accuracy.error < LAG * form.rise:
            return FormatAlert(window, form, accuracy)
    return None


class FormatWatch:
    """Follows a run's lines of metrics.jsonl; a run whose task rewards no format has nothing to follow."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float]] = {}

    def see(self, row: Mapping[str, Any]) -> None:
        """Take in a line, or what will become one; all lines of a rollout say the same of it.

        A rollout whose completions could none of them be judged says nothing.
        """
        if "format" in row and row["unscorable"] < 1:
            self._points[row["rollout"]] = (row["format"], row["accuracy"] / (1 - row["unscorable"]))

    def see_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in the lines so far."""
        for row in rows:
            self.see(row)

    def at(self, rollout: int) -> FormatAlert | None:
        """The alert after ``rollout``."""
        known = [point for number, point in self._points.items() if number <= rollout]
        return format_without_accuracy(known[-2 * max(WINDOWS) :])

    def starts(self, rollout: int) -> FormatAlert | None:
        """The alert after ``rollout`` if it was off for a whole short window before: what a person is told."""
        alert = self.at(rollout)
        earlier = range(max(0, rollout - min(WINDOWS)), rollout)
        return None if alert is None or any(self.at(before) for before in earlier) else alert
