"""The rule of each pattern of collapse: which numbers must have moved, from what to what.

A rule compares the last ``window`` rollouts with the run's own start (medians; for lengths, entropy and diversity) or
with the best that the run had over as many rollouts (means with their standard errors; for accuracy and format). It
needs a number that moved far and, but for format loss, something that got worse by it: a policy that learns moves too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from rlvr_cli.analysis.collapse_reward import Mean, mean_of, reward_hacking
from rlvr_cli.analysis.collapse_signals import Point
from rlvr_cli.analysis.collapse_thresholds import Thresholds

Against = Literal["start", "best", "before"]


@dataclass(frozen=True)
class Movement:
    """A number's move: ``before`` at the run's start, at its best, or in the rollouts before; ``after`` at present."""

    number: str
    before: float
    after: float
    against: Against

    def as_json(self) -> dict[str, Any]:
        """The move as JSON values."""
        return {"number": self.number, "before": self.before, "after": self.after, "against": self.against}


class View:
    """A run as the rules see it after the last of ``points``.

    Args:
        points: of every rollout so far, or the first and the last of them: as many as the rules look at.
        bests: the best accuracy and the best format over a window that ended before the present one; None before there
            was one.
        problems: of each rollout.
    """

    def __init__(
        self,
        points: Sequence[Point],
        bests: tuple[Mean | None, Mean | None],
        problems: int,
        thresholds: Thresholds,
    ) -> None:
        self.points, self.bests, self.problems, self.thresholds = points, bests, problems, thresholds

    def moved(self, number: str) -> Movement | None:
        """Where ``number`` was at the start and where it is; None while the two overlap, or it is not known."""
        start, window = self.thresholds.start, self.thresholds.window
        if len(self.points) < start + window:
            return None
        before, after = (
            [value for point in part if (value := getattr(point, number)) is not None]
            for part in (self.points[:start], self.points[-window:])
        )
        return Movement(number, median(before), median(after), "start") if before and after else None

    def fell(self, number: Literal["accuracy", "format"]) -> tuple[Movement, float] | None:
        """Where ``number`` was at its best and where it is, with the standard error of the difference."""
        best = self.bests[0 if number == "accuracy" else 1]
        present = window_mean(self.points, number, self.thresholds.window)
        if best is None or present is None or self.problems * self.thresholds.window < self.thresholds.fewest_problems:
            return None
        return Movement(number, best.value, present.value, "best"), math.hypot(best.error, present.error)

    def accuracy_fell(self) -> Movement | None:
        """The fall of accuracy from its best, None where it is small or may be noise."""
        found = self.fell("accuracy")
        if found is None:
            return None
        move, error = found
        least = max(self.thresholds.accuracy_drop * move.before, self.thresholds.accuracy_errors * error)
        return move if move.before - move.after > least else None


def window_mean(points: Sequence[Point], number: str, window: int) -> Mean | None:
    """The mean of ``number`` over the last ``window`` rollouts; None where there are fewer, or none that knows it."""
    if len(points) < window:
        return None
    known = [value for point in points[-window:] if (value := getattr(point, number)) is not None]
    return mean_of(known) if known else None


def length_collapse(view: View) -> list[Movement]:
    """Completions got half as long, and accuracy fell."""
    length, fall = view.moved("length"), view.accuracy_fell()
    if length is None or fall is None or length.after > view.thresholds.shorter * length.before:
        return []
    return [length, fall]


def length_explosion(view: View) -> list[Movement]:
    """Completions got twice as long, and accuracy fell or most completions are now cut at the limit."""
    length, cut, fall = view.moved("length"), view.moved("truncated"), view.accuracy_fell()
    if length is None or length.before == 0 or length.after < view.thresholds.longer * length.before:
        return []
    mostly = cut is not None and cut.after >= view.thresholds.mostly_cut and cut.before <= view.thresholds.seldom_cut
    harm = [move for move, counts in ((fall, fall is not None), (cut, mostly)) if move is not None and counts]
    return [length, *harm] if harm else []


def entropy_collapse(view: View) -> list[Movement]:
    """Entropy fell to a third, completions of a problem became alike, and accuracy fell."""
    entropy, diversity, fall = view.moved("entropy"), view.moved("diversity"), view.accuracy_fell()
    if entropy is None or diversity is None or fall is None:
        return []
    low = entropy.after <= view.thresholds.entropy_lower * entropy.before
    alike = diversity.after <= view.thresholds.alike * diversity.before
    return [entropy, diversity, fall] if low and alike else []


def entropy_explosion(view: View) -> list[Movement]:
    """Entropy doubled, and accuracy fell."""
    entropy, fall = view.moved("entropy"), view.accuracy_fell()
    if entropy is None or fall is None or entropy.after < view.thresholds.entropy_higher * entropy.before:
        return []
    return [entropy, fall]


def format_loss(view: View) -> list[Movement]:
    """A fifth of all completions lost the form that they had at the run's best."""
    found = view.fell("format")
    if found is None:
        return []
    move, error = found
    least = max(view.thresholds.format_drop, view.thresholds.format_errors * error)
    return [move] if move.before - move.after > least else []


def hacking(view: View) -> list[Movement]:
    """The format's reward rose and accuracy did not: collapse_reward.py."""
    longest = max(map(sum, view.thresholds.reward_windows))
    known = [
        (point.format_paid, point.accuracy)
        for point in view.points
        if point.format_paid is not None and point.accuracy is not None
    ]
    found = reward_hacking(known[-longest:], view.problems, view.thresholds)
    if found is None:
        return []
    return [
        Movement("format", found.format.before, found.format.after, "before"),
        Movement("accuracy", found.accuracy.before, found.accuracy.after, "before"),
    ]


RULES: dict[str, Callable[[View], list[Movement]]] = {
    "length_collapse": length_collapse,
    "length_explosion": length_explosion,
    "entropy_collapse": entropy_collapse,
    "entropy_explosion": entropy_explosion,
    "format_loss": format_loss,
    "reward_hacking": hacking,
}
