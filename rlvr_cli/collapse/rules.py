"""The rule of each pattern of collapse: which numbers must have moved, from what to what.

A rule compares a window of the last rollouts with the run's own start (medians; for lengths, entropy and diversity) or
with the best that the run had over as many rollouts (means with their standard errors; for accuracy and format). It
needs a number that moved far and, but for format loss, something that got worse by it: a policy that learns moves too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from rlvr_cli.collapse.reward import Mean, mean_of, reward_hacking
from rlvr_cli.collapse.signals import Point
from rlvr_cli.collapse.thresholds import Thresholds

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
        points: of every rollout so far.
        bests: the best accuracy and the best format over a window that ended before the present one; None before there
            was one.
        paid: format reward and accuracy of the rollouts that know both, as many of the last as a rule looks at.
        problems: of each rollout.
    """

    def __init__(
        self,
        points: Sequence[Point],
        bests: tuple[Mean | None, Mean | None],
        paid: Sequence[tuple[Mean, Mean]],
        problems: int,
        thresholds: Thresholds,
    ) -> None:
        self.points, self.bests, self.paid = points, bests, paid
        self.problems, self.thresholds = problems, thresholds

    def moved(self, number: str) -> Movement | None:
        """Where ``number`` was at the start and where it is; None while the two overlap, or it is not known.

        A number that fell is compared with the highest of the first rollouts, one that rose with the lowest: a fast
        collapse moves within them. It is where all rollouts of the window but one in ``others`` have come to at least.
        """
        start, window = self.thresholds.start, self.thresholds.rollouts(self.problems)
        if len(self.points) < start + window:
            return None
        before, after = (
            [value for point in part if (value := getattr(point, number)) is not None]
            for part in (self.points[:start], self.points[-window:])
        )
        if not before or not after:
            return None
        ranked, others = sorted(after), len(after) // self.thresholds.others
        middle = median(after)
        if middle < min(before):
            return Movement(number, max(before), ranked[-1 - others], "start")
        if middle > max(before):
            return Movement(number, min(before), ranked[others], "start")
        return Movement(number, median(before), middle, "start")

    def fell(self, number: Literal["accuracy", "format"], drop: float, errors: float) -> Movement | None:
        """The fall of ``number`` from its best, None where it is small, short or may be noise.

        Its mean fell by more than ``drop`` and more than ``errors`` standard errors, its median by more than ``drop``.
        """
        best, window = self.bests[0 if number == "accuracy" else 1], self.thresholds.rollouts(self.problems)
        present = window_mean(self.points, number, window)
        if best is None or present is None:
            return None
        known = [value for point in self.points[-window:] if (value := getattr(point, number)) is not None]
        middle = median(share.value for share in known)
        least = max(drop, errors * math.hypot(best.error, present.error))
        fell = best.value - present.value > least and best.value - middle > drop
        return Movement(number, best.value, present.value, "best") if fell else None

    def accuracy_fell(self) -> Movement | None:
        """The fall of accuracy from its best."""
        best = self.bests[0]
        drop = self.thresholds.accuracy_drop * best.value if best else 0.0
        return self.fell("accuracy", drop, self.thresholds.accuracy_errors)

    def nothing_gained(self) -> Movement | None:
        """Accuracy where it is no higher than at the start, and was not high there."""
        known = [point.accuracy for point in self.points[: self.thresholds.start] if point.accuracy is not None]
        present = window_mean(self.points, "accuracy", self.thresholds.rollouts(self.problems))
        if not known or present is None:
            return None
        start = mean_of(known).value
        stuck = present.value <= start < self.thresholds.solved
        return Movement("accuracy", start, present.value, "start") if stuck else None


def window_mean(points: Sequence[Point], number: str, window: int) -> Mean | None:
    """The mean of ``number`` over the last ``window`` rollouts; None where there are fewer, or none that knows it."""
    if len(points) < window:
        return None
    known = [value for point in points[-window:] if (value := getattr(point, number)) is not None]
    return mean_of(known) if known else None


def length_collapse(view: View) -> list[Movement]:
    """Completions got half as long, and accuracy fell, or is no higher than at the start."""
    length = view.moved("length")
    if length is None or length.after > view.thresholds.shorter * length.before:
        return []
    return _with(length, harm=view.accuracy_fell() or view.nothing_gained())


def length_explosion(view: View) -> list[Movement]:
    """Completions got twice as long, and accuracy fell or most completions are now cut at the limit."""
    length = view.moved("length")
    if length is None or length.before == 0 or length.after < view.thresholds.longer * length.before:
        return []
    cut, fall = view.moved("truncated"), view.accuracy_fell()
    if cut is None or cut.after < view.thresholds.mostly_cut or cut.before > view.thresholds.seldom_cut:
        return _with(length, harm=fall)
    return [length, cut] if fall is None else [length, fall, cut]


def entropy_collapse(view: View) -> list[Movement]:
    """Entropy halved, completions of a problem became alike, and accuracy fell, or is no higher than at the start."""
    entropy, diversity = view.moved("entropy"), view.moved("diversity")
    if entropy is None or entropy.after > view.thresholds.entropy_lower * entropy.before:
        return []
    if diversity is None or diversity.after > view.thresholds.alike * diversity.before:
        return []
    return _with(entropy, diversity, harm=view.accuracy_fell() or view.nothing_gained())


def entropy_explosion(view: View) -> list[Movement]:
    """Entropy doubled, and accuracy fell."""
    entropy = view.moved("entropy")
    if entropy is None or entropy.before == 0 or entropy.after < view.thresholds.entropy_higher * entropy.before:
        return []
    return _with(entropy, harm=view.accuracy_fell())


def _with(*moves: Movement, harm: Movement | None) -> list[Movement]:
    """The moves and what got worse with them; nothing where nothing did."""
    return [] if harm is None else [*moves, harm]


def format_loss(view: View) -> list[Movement]:
    """A fifth of all completions lost the form that they had at the run's best."""
    move = view.fell("format", view.thresholds.format_drop, view.thresholds.format_errors)
    return [] if move is None else [move]


def hacking(view: View) -> list[Movement]:
    """The format's reward rose and accuracy did not: reward.py."""
    found = reward_hacking(view.paid, view.problems, view.thresholds)
    if found is None:
        return []
    return [
        Movement("format", found.format.before, found.format.after, "before"),
        Movement("accuracy", found.accuracy.before, found.accuracy.after, "before"),
    ]


def broken_policy(view: View) -> list[Movement]:
    """No completion is right and none well-formed any more, in a few rollouts in a row, where most had a form before.

    What an absurd step of the optimizer leaves: it shows at once, where the other rules wait for a window.
    """
    thresholds, window = view.thresholds, view.thresholds.rollouts(view.problems)
    last, earlier = view.points[-thresholds.broken :], view.points[: -thresholds.broken]
    moves: list[Movement] = []
    numbers: tuple[Literal["accuracy", "format"], ...] = ("accuracy", "format")
    for number, of_window in zip(numbers, view.bests, strict=True):
        # At the start, lately, or at best over a window: not all of a long run.
        places = [*earlier[: thresholds.start], *earlier[-window:]]
        before, after = ([getattr(point, number) for point in part] for part in (places, last))
        best = max((share.value for share in (*before, of_window) if share is not None), default=0.0)
        if best == 0 or any(share is None or share.value > 0 for share in after):
            return []
        moves.append(Movement(number, best, 0.0, "before"))
    return moves if moves[1].before >= thresholds.formed else []


RULES: dict[str, Callable[[View], list[Movement]]] = {
    "length_collapse": length_collapse,
    "length_explosion": length_explosion,
    "entropy_collapse": entropy_collapse,
    "entropy_explosion": entropy_explosion,
    "format_loss": format_loss,
    "reward_hacking": hacking,
    "broken_policy": broken_policy,
}
