"""Alerts on a training, computed from metrics.jsonl: no signal, collapse, skipped updates. Imports no torch.

A collapse is a metric far from its start together with a lower accuracy, because metrics also move when a policy
learns. Current values are over a window of the last rollouts; docs/collapse.md explains the thresholds. Alerts are a
function of the lines, so a resumed run and a report raise the same alerts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from rlvr_cli.core.files import finite
from rlvr_cli.core.text import count

PREFIX = "alert/"
NO_SIGNAL, NON_FINITE = "no_signal", "non_finite"
MEANINGS = {
    "accuracy_drop": "the policy is losing what it had learned",
    "entropy_collapse": "the policy may have settled on wrong answers",
    "entropy_explosion": "the policy may be losing its abilities",
    "length_collapse": "the policy may be skipping the reasoning",
    "length_explosion": "the policy may be rambling",
    NON_FINITE: "a loss, gradient or reward was not finite; its update was skipped",
    # Its evidence ends with a remedy.
    NO_SIGNAL: "",
}
PATTERNS = tuple(name for name in MEANINGS if name != NO_SIGNAL)
# Monitored besides accuracy.
_COLUMNS = ("length", "entropy", "diversity", "truncated")
# Consecutive rollouts without a signal before an alert; a single one may be chance.
IDLE_ROLLOUTS = 3
# An alert that recurs within this number of rollouts is not reported again.
MERGE_ROLLOUTS = 10
# Minimum share of truncated completions for the token limit to explain zero accuracy.
MIN_TRUNCATED_SHARE = 0.5


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of the rules; factors are relative to the run's start.

    Attributes:
        start: number of first rollouts, the reference. window: number of last rollouts to average, extended
            until they hold ``window_problems`` problems.
        accuracy_drop, accuracy_errors: an accuracy drop is at least this share of the best window, and this many
            standard errors.
        solved: accuracy at the start above which no improvement is required.
        lower, higher: factors of entropy and length. low_diversity: factor of diversity, for an entropy collapse.
    """

    start: int = 3
    window: int = 5
    window_problems: int = 80
    accuracy_drop: float = 0.2
    accuracy_errors: float = 2.5
    solved: float = 0.8
    lower: float = 0.5
    higher: float = 2.0
    low_diversity: float = 0.8


@dataclass(frozen=True)
class Alert:
    """An alert of a run.

    Attributes:
        name: a key of ``MEANINGS``. first, last: the first and last rollout, from 0, at which it is active.
        lasting: whether it is active at the newest rollout. evidence: the metrics that moved.
    """

    name: str
    first: int
    last: int
    lasting: bool
    evidence: str

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    def __str__(self) -> str:
        meaning = MEANINGS[self.name]
        return f"{self.title}: {self.evidence}{'; ' if meaning else ''}{meaning}"


def active_alerts(row: Mapping[str, Any]) -> str:
    """Return the names of the active alerts of a line of metrics.jsonl, or ""."""
    names = (name.removeprefix(PREFIX) for name in row if name.startswith(PREFIX) and row[name])
    return ", ".join(name.replace("_", " ") for name in names)


def alert_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for each span of rollouts with an active alert column of metrics.jsonl."""
    spans: dict[str, list[list[int]]] = {}
    for row in rows:
        for name in (name for name in row if name.startswith(PREFIX) and row[name]):
            periods = spans.setdefault(name.removeprefix(PREFIX), [])
            if periods and row["rollout"] - periods[-1][1] <= 1:
                periods[-1][1] = row["rollout"]
            else:
                periods.append([row["rollout"], row["rollout"]])
    newest = max((row["rollout"] for row in rows), default=0)
    return [
        f"{name.replace('_', ' ')}, rollouts {first + 1}-{last + 1}{' (the newest)' if last == newest else ''}"
        for first, last, name in sorted(
            (first, last, name) for name, periods in spans.items() for first, last in periods
        )
    ]


class AlertMonitor:
    """Monitor the lines of metrics.jsonl. Only a rollout's first line counts, except for skipped updates."""

    def __init__(
        self, problems: int, thresholds: Thresholds | None = None, rows: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self.problems, self.thresholds = problems, thresholds or Thresholds()
        self.window = max(self.thresholds.window, -(-self.thresholds.window_problems // problems))
        self._rows: dict[int, Mapping[str, Any]] = {}
        # Per rollout: metrics by name, and (accuracy, standard error).
        self._columns: dict[str, list[float | None]] = {name: [] for name in _COLUMNS}
        self._accuracies: list[tuple[float, float] | None] = []
        # Per rollout: the mean of the last ``window`` accuracies.
        self._windows: list[tuple[float, float] | None] = []
        # Active alerts by rollout: name -> evidence.
        self._active: dict[int, dict[str, str]] = {}
        # Accuracy over the best window that ended before the current one.
        self._best: tuple[float, float] | None = None
        self._skips = 0.0
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, Any]) -> list[Alert]:
        """Add a line; return its alerts that were not active in the ``MERGE_ROLLOUTS`` rollouts before."""
        rollout = row["rollout"]
        recent = set[str]().union(
            *(self._active.get(earlier, ()) for earlier in range(rollout - MERGE_ROLLOUTS, rollout + 1))
        )
        if rollout not in self._rows:
            self._rows[rollout] = row
            for name, values in self._columns.items():
                values.append(finite(row.get(name)))
            self._accuracies.append(self._accuracy(row))
            self._windows.append(_mean(self._accuracies[-self.window :]))
            mean = self._windows[-1 - self.window] if len(self._accuracies) >= 2 * self.window else None
            if mean is not None and (self._best is None or mean[0] > self._best[0]):
                self._best = mean
            self._active[rollout] = dict(self._rules(rollout))
        skips = finite(row.get("skips")) or 0.0
        if skips > self._skips:
            self._skips = skips
            self._active[rollout].setdefault(NON_FINITE, count(round(skips), "skipped update"))
        active = self._active[rollout].items()
        return [Alert(name, rollout, rollout, True, evidence) for name, evidence in active if name not in recent]

    def fields(self, rollout: int, *, collapse: bool = True, signal: bool = True) -> dict[str, int]:
        names = [*(PATTERNS if collapse else ()), *([NO_SIGNAL] if signal and self._records_signal(rollout) else [])]
        return {f"{PREFIX}{name}": int(name in self._active.get(rollout, {})) for name in names}

    def alerts(self) -> list[Alert]:
        """Return all alerts of the run by first rollout; recurrences within ``MERGE_ROLLOUTS`` rollouts are merged."""
        spans: dict[str, list[Alert]] = {}
        newest = max(self._rows, default=0)
        for rollout, active in sorted(self._active.items()):
            for name, evidence in active.items():
                periods = spans.setdefault(name, [])
                if periods and rollout - periods[-1].last <= MERGE_ROLLOUTS:
                    earlier = periods.pop()
                    first, evidence = earlier.first, earlier.evidence
                else:
                    first = rollout
                periods.append(Alert(name, first, rollout, rollout == newest, evidence))
        return sorted(
            (span for periods in spans.values() for span in periods), key=lambda span: (span.first, span.name)
        )

    def no_signal_summary(self) -> str | None:
        """Summarise the rollouts without a signal; None without an alert."""
        if not any(NO_SIGNAL in active for active in self._active.values()):
            return None
        idle = [row for rollout, row in self._rows.items() if self._is_idle(rollout)]
        reason, remedy = _no_signal_reason(idle)
        if len(idle) == len(self._rows):
            return f"nothing was learned: no completion of {len(idle)} rollouts had an advantage: {reason}. {remedy}"
        lasting = NO_SIGNAL in self._active[max(self._rows)]
        ending = f"the last ones too. {remedy}" if lasting else "then the run recovered."
        return f"{len(idle)} of {len(self._rows)} rollouts had no signal ({reason}), {ending}"

    def _records_signal(self, rollout: int) -> bool:
        """Return whether the advantages of ``rollout`` are recorded, which imitation methods do not have."""
        return "nonzero_advantage" in self._rows.get(rollout, {})

    def _is_idle(self, rollout: int) -> bool:
        return self._records_signal(rollout) and self._rows[rollout]["nonzero_advantage"] == 0

    def _rules(self, rollout: int) -> Iterable[tuple[str, str]]:
        rollouts = range(rollout + 1 - IDLE_ROLLOUTS, rollout + 1)
        if all(map(self._is_idle, rollouts)):
            reason, remedy = _no_signal_reason([self._rows[earlier] for earlier in rollouts])
            yield NO_SIGNAL, f"in the last {IDLE_ROLLOUTS} rollouts {reason}. {remedy}"
        if len(self._rows) < self.thresholds.start + self.window:
            return
        current = self._windows[-1]
        limits, drop = self.thresholds, self._accuracy_drop(current)
        harm = drop or self._no_improvement(current)
        if drop:
            yield "accuracy_drop", drop
        truncated = _median(self._columns["truncated"][-self.window :]) or 0.0
        if not harm and truncated < MIN_TRUNCATED_SHARE:
            return
        length, entropy, diversity = map(self._factor, ("length", "entropy", "diversity"))
        if entropy and diversity and entropy[0] <= limits.lower and diversity[0] <= limits.low_diversity and harm:
            yield "entropy_collapse", f"{entropy[1]}, {diversity[1]}, {harm}"
        if entropy and entropy[0] >= limits.higher and drop:
            yield "entropy_explosion", f"{entropy[1]}, {drop}"
        if length and length[0] <= limits.lower and harm:
            yield "length_collapse", f"{length[1]}, {harm}"
        if length and length[0] >= limits.higher and (drop or truncated >= MIN_TRUNCATED_SHARE):
            yield "length_explosion", f"{length[1]}, {drop or f'{truncated:.0%} cut at the token limit'}"

    def _factor(self, name: str) -> tuple[float, str] | None:
        """Return the ratio of a column's medians, current over start, and both as text."""
        values = self._columns[name]
        before, after = _median(values[: self.thresholds.start]), _median(values[-self.window :])
        if not before or after is None:
            return None
        return after / before, f"{name} {after:.3g} from {before:.3g} at the start"

    def _accuracy_drop(self, current: tuple[float, float] | None) -> str:
        """Describe the drop of accuracy from its best earlier window; "" if small or not significant."""
        best = self._best
        if current is None or best is None:
            return ""
        limits = self.thresholds
        least = max(limits.accuracy_drop * best[0], limits.accuracy_errors * math.hypot(best[1], current[1]))
        return f"accuracy {current[0]:.1%} from {best[0]:.1%} at best" if best[0] - current[0] > least else ""

    def _no_improvement(self, current: tuple[float, float] | None) -> str:
        """Describe an accuracy not above the start's; "" if it rose or was high at the start."""
        start = _mean(self._accuracies[: self.thresholds.start])
        if start is None or current is None or current[0] > start[0] or start[0] >= self.thresholds.solved:
            return ""
        return f"accuracy {current[0]:.1%} from {start[0]:.1%} at the start"

    def _accuracy(self, row: Mapping[str, Any]) -> tuple[float, float] | None:
        """Return the accuracy of the scorable completions and its standard error over problems.

        Without a recorded standard error, the upper bound sqrt(p (1 - p) / problems).
        """
        scorable = 1 - (finite(row.get("unscorable")) or 0.0)
        share, error = finite(row.get("accuracy")), finite(row.get("accuracy/se"))
        if share is None or scorable <= 0:
            return None
        value = share / scorable
        return value, math.sqrt(max(0.0, value * (1 - value)) / self.problems) if error is None else error


def _mean(accuracies: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    available = [accuracy for accuracy in accuracies if accuracy is not None]
    if not available:
        return None
    values, errors = zip(*available, strict=True)
    return fmean(values), math.hypot(*errors) / len(available)


def _median(values: Sequence[float | None]) -> float | None:
    available = [value for value in values if value is not None]
    return median(available) if available else None


def _no_signal_reason(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return why no completion of these rollouts had an advantage, and a remedy.

    The rewards of each problem were equal (or a method that trains only on correct or incorrect ones had none).
    """

    def mean(name: str) -> float | None:
        values = [value for row in rows if (value := finite(row.get(name))) is not None]
        return fmean(values) if values else None

    accuracy, truncated, reward = mean("accuracy"), mean("truncated"), mean("reward")
    reasons = {key.partition("/")[2]: mean(key) or 0.0 for row in rows for key in row if key.startswith("reason/")}
    share, reason = max(((share, reason) for reason, share in reasons.items()), default=(0.0, "wrong"))
    mostly = f"; {share:.0%} {reason.replace('_', ' ')}" if reason != "wrong" else ""
    mean_reward = f"mean reward {reward:.3g}" if reward is not None else "no reward is recorded"
    if mean("unscorable") == 1.0:
        return (
            f"no completion could be scored{mostly}",
            "rollouts/ in the run's folder holds each response and the reason for its missing reward.",
        )
    if mean("kl_teacher") is not None:
        return "policy and teacher gave every token the same probability", "Choose another teacher or policy."
    if accuracy == 1.0:
        return f"all completions were correct ({mean_reward})", "Nothing is left to learn here: use harder problems."
    if accuracy == 0.0 and truncated is not None and truncated >= MIN_TRUNCATED_SHARE:
        return (
            f"no completion was correct, {truncated:.0%} were cut at the token limit ({mean_reward})",
            "Raise rollout.max_new_tokens, or use a model that answers sooner.",
        )
    if accuracy == 0.0:
        return (
            f"no completion was correct ({mean_reward}{mostly})",
            "See the model's prompt (`rlvr tasks show`); use easier problems or a model that solves some of them, or "
            "teach it first (--method sft).",
        )
    right = "" if accuracy is None else f", {accuracy:.0%} right"
    return (
        f"the completions of each problem had equal rewards ({mean_reward}{right})",
        "Raise rollout.group_size or rollout.temperature, or filter out problems that are always or never solved "
        "(`rlvr tasks filter`).",
    )
