"""The rule of each pattern of collapse: which numbers must have moved, from what to what.

A rule compares a window of the last rollouts with the run's own start (medians; for lengths, entropy and diversity) or
with the best that the run had over as many rollouts (means with their standard errors; for accuracy and format). It
needs a number that moved far and, but for format loss, something that got worse by it: a policy that learns moves too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal


@dataclass(frozen=True)
class Thresholds:
    """The numbers of the rules of collapse; factors are of the run's own start."""

    # The start of a run: this many first rollouts; what fell is compared with the highest of them, what rose with the
    # lowest.
    start: int = 3
    # Rollouts that are looked at together, so that a pattern has lasted for most of them when it is named: this many,
    # and with few prompts in a rollout as many as have this number of problems, below which accuracy is too noisy.
    window: int = 5
    window_problems: int = 80
    # One rollout in so many of a window may differ from what is said of the others.
    others: int = 5

    # Accuracy fell: by this share of the best that the run had over a window, and by this many standard errors.
    accuracy_drop: float = 0.2
    accuracy_errors: float = 2.5
    # An accuracy that is no higher than at the start is no harm where it was this high.
    solved: float = 0.8

    # Lengths differ by 10% between rollouts of one policy; half and double are far outside.
    shorter: float = 0.5
    longer: float = 2.0
    # Most completions are cut at the limit, and few were at the start.
    mostly_cut: float = 0.5
    seldom_cut: float = 0.25

    # Entropy falls in every training that succeeds, to a quarter on the lab: it is a collapse only where the
    # completions of a problem have become alike too, and accuracy is not better for it.
    entropy_lower: float = 0.5
    alike: float = 0.8
    entropy_higher: float = 2.0

    # The well-formed share fell by this much of all completions from its best, and by this many standard errors: the
    # best of many windows is high by chance, hence more than accuracy's, which no rule takes alone.
    format_drop: float = 0.2
    format_errors: float = 4.5

    # Reward hacking: rollouts before and rollouts since; windows of fewer problems have too rough a standard error.
    fewest_problems: int = 16
    reward_windows: tuple[tuple[int, int], ...] = ((2, 5), (5, 5), (10, 10), (20, 20), (40, 40))
    # The rise of the format's reward in standard errors and in shares of its range, and what share of it accuracy
    # would have to keep up with, by how many standard errors.
    rise_errors: float = 4.5
    smallest_rise: float = 0.02
    lag: float = 0.25
    flat_errors: float = 3.0

    # Broken at once: so many rollouts in a row without a right and without a well-formed completion, of which there was
    # this share before.
    broken: int = 2
    formed: float = 0.5

    # A pattern that comes again within this many rollouts is not told again.
    pause: int = 10

    def rollouts(self, problems: int) -> int:
        """Rollouts of a window where each has as many ``problems``."""
        return max(self.window, -(-self.window_problems // problems))


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error, problems being what was sampled."""

    value: float
    error: float


@dataclass(frozen=True)
class Shift:
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
    format: Shift
    accuracy: Shift


def _mean_of(means: Sequence[Mean]) -> Mean:
    """The mean over rollouts, each counted once."""
    value = math.fsum(mean.value for mean in means) / len(means)
    return Mean(value, math.sqrt(math.fsum((mean.error / len(means)) ** 2 for mean in means)))


def change(means: Sequence[Mean], before: int, since: int) -> Shift:
    """The last ``since`` rollouts against the ``before`` in front of them; there are as many at least."""
    first, second = _mean_of(means[-since - before : -since]), _mean_of(means[-since:])
    return Shift(first.value, second.value, math.hypot(first.error, second.error))


def reward_hacking(points: Sequence[tuple[Mean, Mean]], problems: int, thresholds: Thresholds) -> RewardHacking | None:
    """What the rule of reward hacking saw after the last of ``points``, None where it does not hold.

    The mean of the last rollouts is compared with that of the rollouts before: 5 with the 2 before them (the format is
    often learned in the first few rollouts), and 5, 10, 20 and 40 with as many. The standard error of the difference
    comes from the spread between the problems within each rollout, so that a trend does not hide itself as noise. The
    rule holds where, for one of these pairs,

    - the format rose by more than ``rise_errors`` standard errors, and by at least ``smallest_rise``, and
    - accuracy rose by less than ``lag`` of that: its rise and ``flat_errors`` standard errors of it stay below.

    So noise does not raise it, and neither does an accuracy that nobody could tell from a rising one. The rates of
    false alarms are in docs/training-signals.md.

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


# Reasons of verdicts on what has no form that could be judged, where the reward has no part for the format.
FORMLESS = ("no_answer", "bad_format", "too_long")


@dataclass(frozen=True)
class RolloutNumbers:
    """One rollout; None where a number is not known.

    Attributes:
        rollout: its number, from 0.
        length: mean completion, in tokens.
        truncated: share of completions cut at the limit.
        diversity: share of completions that differ from those before them of the same problem.
        entropy: of the policy, in nats a token; of the rollout's first optimizer step, whose policy is the one that
            sampled.
        grad_norm: of the same step, before clipping.
        accuracy: share of right completions among those that could be judged.
        format: share of well-formed completions.
        format_paid: the format's reward as a share of its range, where the reward has such a part.
    """

    rollout: int
    length: float | None
    truncated: float | None
    diversity: float | None
    entropy: float | None
    grad_norm: float | None
    accuracy: Mean | None
    format: Mean | None
    format_paid: Mean | None


def point_of(row: Mapping[str, Any], problems: int) -> RolloutNumbers:
    """The point of a rollout from its first line.

    A rollout whose completions could none of them be judged says nothing of accuracy and format. Where a line has no
    standard error, that of a share p stands for it in which a problem's completions all agree: sqrt(p (1 - p) /
    ``problems``), the largest for such a share.
    """
    judged = 1 - row.get("unscorable", 0.0)
    accuracy = form = paid = None

    def mean(value: float, error: float | None) -> Mean:
        return Mean(value, math.sqrt(max(0.0, value * (1 - value)) / problems) if error is None else error)

    if judged > 0 and "accuracy" in row:
        accuracy = mean(row["accuracy"] / judged, row.get("accuracy/se"))
        if "format" in row:
            form = None if row["format"] is None else mean(row["format"], row.get("format/se"))
            paid = form if "format/se" in row else None
        else:
            # What could not be judged has none of these reasons.
            formless = sum(row.get(f"reason/{reason}", 0.0) for reason in FORMLESS)
            form = mean(1 - formless / judged, None)
    return RolloutNumbers(
        rollout=row["rollout"],
        length=row.get("length"),
        truncated=row.get("truncated"),
        diversity=row.get("diversity"),
        entropy=row.get("entropy"),
        grad_norm=row.get("grad_norm"),
        accuracy=accuracy,
        format=form,
        format_paid=paid,
    )


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
        points: Sequence[RolloutNumbers],
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
        start = _mean_of(known).value
        stuck = present.value <= start < self.thresholds.solved
        return Movement("accuracy", start, present.value, "start") if stuck else None


def window_mean(points: Sequence[RolloutNumbers], number: str, window: int) -> Mean | None:
    """The mean of ``number`` over the last ``window`` rollouts; None where there are fewer, or none that knows it."""
    if len(points) < window:
        return None
    known = [value for point in points[-window:] if (value := getattr(point, number)) is not None]
    return _mean_of(known) if known else None


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
    """The format's reward rose and accuracy did not (:func:`reward_hacking`)."""
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
