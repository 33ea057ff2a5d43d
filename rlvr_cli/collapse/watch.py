"""Collapse detection: which named pattern a run shows, since when, and which numbers say so.

All is a function of the lines of metrics.jsonl, so that a resumed run goes on exactly and a report finds what the run
was told. The rules and their numbers are in rules.py, explained in docs/collapse.md.
Imports no torch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_cli.collapse.alerts import EVIDENCE, PREFIX, said
from rlvr_cli.collapse.rules import RULES, Mean, Movement, RolloutNumbers, Thresholds, View, point_of, window_mean

PATTERNS = tuple(RULES)

MEANINGS = {
    "length_collapse": "the policy may be skipping the reasoning",
    "length_explosion": "the policy may be rambling",
    "entropy_collapse": "the policy may have settled on wrong answers, from which no update moves it",
    "entropy_explosion": "the policy may be losing what it knew",
    "format_loss": "the policy no longer writes what can be judged",
    "reward_hacking": "the policy may be learning the format in place of the answers",
    "broken_policy": "an update has destroyed the policy, and a lower optimizer.lr is needed",
}
# What is watched, in the order of showing; the rules' own numbers come before.
WATCHED = ("length", "truncated", "entropy", "diversity", "grad_norm")


@dataclass(frozen=True)
class Collapse:
    """A pattern that began.

    Attributes:
        pattern: one of ``PATTERNS``.
        first: the rollout after which its rule held first, from 0.
        evidence: the moves that the rule asks for.
        beside: how the other numbers moved since the start.
    """

    pattern: str
    first: int
    evidence: tuple[Movement, ...]
    beside: tuple[Movement, ...]

    @property
    def name(self) -> str:
        """The pattern as people write it."""
        return self.pattern.replace("_", " ")

    def as_json(self) -> dict[str, Any]:
        """The collapse as JSON values."""
        return {
            "pattern": self.pattern,
            "first": self.first,
            "evidence": [move.as_json() for move in self.evidence],
            "beside": [move.as_json() for move in self.beside],
        }

    def __str__(self) -> str:
        moves, others = (", ".join(said(move.as_json()) for move in part) for part in (self.evidence, self.beside))
        return f"{self.name}: {moves}; {MEANINGS[self.pattern]}" + (f" (next to it: {others})" if others else "")


class CollapseWatch:
    """Follows a run's lines of metrics.jsonl.

    Args:
        problems: of each rollout.
    """

    def __init__(self, problems: int, thresholds: Thresholds | None = None) -> None:
        self.problems, self.thresholds = problems, thresholds or Thresholds()
        self.window = self.thresholds.rollouts(problems)
        self._points: list[RolloutNumbers] = []
        self._on: dict[int, dict[str, Collapse]] = {}
        self._windows: list[tuple[Mean | None, Mean | None]] = []
        self._bests: tuple[Mean | None, Mean | None] = (None, None)
        self._paid: deque[tuple[Mean, Mean]] = deque(maxlen=max(map(sum, self.thresholds.reward_windows)))

    def see(self, row: Mapping[str, Any]) -> None:
        """Take in a line, or what will become one; of a rollout the first line counts."""
        if row["rollout"] in self._on:
            return
        point, window = point_of(row, self.problems), self.window
        self._points.append(point)
        if point.format_paid is not None and point.accuracy is not None:
            self._paid.append((point.format_paid, point.accuracy))
        self._windows.append(
            (window_mean(self._points, "accuracy", window), window_mean(self._points, "format", window))
        )
        if len(self._windows) > window:
            of_past = self._windows[-window - 1]
            self._bests = (_higher(self._bests[0], of_past[0]), _higher(self._bests[1], of_past[1]))
        self._on[row["rollout"]] = {found.pattern: found for found in self._found(row["rollout"])}

    def _found(self, rollout: int) -> list[Collapse]:
        view = self._view()
        found = []
        for pattern, rule in RULES.items():
            evidence = tuple(rule(view))
            if not evidence:
                continue
            told = {move.number for move in evidence}
            moves = (view.moved(number) for number in WATCHED if number not in told)
            found.append(Collapse(pattern, rollout, evidence, tuple(move for move in moves if move is not None)))
        return found

    def _view(self) -> View:
        return View(self._points, self._bests, list(self._paid), self.problems, self.thresholds)

    def see_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in the lines so far."""
        for row in rows:
            self.see(row)

    def on(self, rollout: int) -> dict[str, Collapse]:
        """The patterns whose rules hold after ``rollout``."""
        return self._on.get(rollout, {})

    def begins(self, rollout: int) -> list[Collapse]:
        """The patterns that hold after ``rollout`` and did not in the ``pause`` rollouts before: the new alerts."""
        earlier = [self.on(before) for before in range(rollout - self.thresholds.pause, rollout)]
        return [
            collapse
            for pattern, collapse in self.on(rollout).items()
            if not any(pattern in patterns for patterns in earlier)
        ]

    def told(self) -> list[Collapse]:
        """The patterns in the order in which they begin; one that comes again after a pause is there again."""
        return [collapse for rollout in self._on for collapse in self.begins(rollout)]

    def lasting(self) -> set[str]:
        """The patterns that were told and are not over after the newest rollout.

        One is over when its rule does not hold and accuracy, if that was the worse for it, is it no longer.
        """
        if not self._points:
            return set()
        view, now = self._view(), self.on(self._points[-1].rollout)
        worse = {"best": view.accuracy_fell(), "start": view.nothing_gained()}
        return set(now) | {
            one.pattern
            for one in self.told()
            if any(move.number == "accuracy" and worse.get(move.against) for move in one.evidence)
        }

    def last_sound(self, found: Sequence[Collapse]) -> int:
        """The last rollout, from 0, from before the collapses ``found`` after the newest rollout began; at least 0.

        It is before the rollouts of the window too, over which a collapse shows before it is found.
        """
        begins = min(onset(self._points, collapse.evidence, self._best_place(collapse)) for collapse in found)
        return max(0, min(self._points[begins].rollout - 1, self._points[-1].rollout + 1 - self.window))

    def _best_place(self, collapse: Collapse) -> int:
        """Where the best window began that the newest rollout was compared with; 0 where it was not."""
        number = next((("accuracy", "format").index(m.number) for m in collapse.evidence if m.against == "best"), None)
        if number is None:
            return 0
        past = ((means[number], place) for place, means in enumerate(self._windows[: -self.window]))
        best = max(((mean.value, -place) for mean, place in past if mean is not None))
        return 1 - best[1] - self.window

    def fields(self, rollout: int) -> dict[str, Any]:
        """What every line of ``rollout``, the newest, says.

        0 or 1 for each pattern that can be told, and the evidence of those that begin.
        """
        paid = self._points[-1].format_paid is not None
        states = {
            f"{PREFIX}{pattern}": int(pattern in self.on(rollout))
            for pattern in PATTERNS
            if paid or pattern != "reward_hacking"
        }
        begins = self.begins(rollout)
        return {**states, **({EVIDENCE: [collapse.as_json() for collapse in begins]} if begins else {})}


def _higher(one: Mean | None, other: Mean | None) -> Mean | None:
    if one is None or other is None:
        return one or other
    return one if one.value >= other.value else other


def detect(rows: Sequence[Mapping[str, Any]], problems: int, thresholds: Thresholds | None = None) -> list[Collapse]:
    """What a watch of the whole run tells (:meth:`CollapseWatch.told`).

    Args:
        rows: the lines of metrics.jsonl, several for a rollout, in their order.
        problems: of each rollout: `rollout.prompts` of the run.
    """
    watch = CollapseWatch(problems, thresholds)
    watch.see_all(rows)
    return watch.told()


# Compared by their ratios, as the rules do; shares by their differences.
BY_RATIO = ("length", "entropy")


def onset(points: Sequence[RolloutNumbers], evidence: Sequence[Movement], since: int = 0) -> int:
    """The place in ``points``, all up to the rollout that showed the collapse, from which it lasts; after ``since``.

    A rollout is collapsed where more than half of the numbers of the evidence are nearer to their value ``after`` than
    to that ``before``: not any one, because a policy that learns gets longer and surer too. The collapse begins where
    the collapsed rollouts since then outnumber the others by most (the earliest such place), so that a rollout that is
    out by chance decides nothing: a cumulative sum of signs, as of Page, "Continuous inspection schemes", Biometrika
    41, 1954, read backwards.

    Args:
        since: a place where the policy was sound: before it was at its best, it was no better than after its fall.
    """
    # Accuracy that never rose has not moved.
    moves = [move for move in evidence if not (move.number == "accuracy" and move.against != "best")] or list(evidence)
    begins, excess, most = len(points) - 1, 0, 0
    for place in range(len(points) - 1, since, -1):
        votes = [vote for move in moves if (vote := _is_after(points[place], move)) is not None]
        if votes:
            excess += 1 if 2 * sum(votes) > len(votes) else -1
        if excess >= most and excess > 0:
            begins, most = place, excess
    return begins


def _is_after(point: RolloutNumbers, move: Movement) -> bool | None:
    """Whether the number is nearer to where it came than to where it was; None where it is not known."""
    paid = move.number == "format" and move.against == "before"
    found = getattr(point, "format_paid" if paid else move.number)
    if found is None:
        return None
    value = found.value if isinstance(found, Mean) else float(found)
    by_ratio = move.number in BY_RATIO and move.before > 0 and move.after > 0
    middle = math.sqrt(move.before * move.after) if by_ratio else (move.before + move.after) / 2
    return value < middle if move.after < move.before else value > middle
