"""A run's alerts from its lines of metrics.jsonl: when each was on, and the one of a training that learns nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlvr_cli.core.files import number

PREFIX = "alert/"
# The key with the alerts that begin, and the numbers that moved.
EVIDENCE = "collapse"
NO_SIGNAL = "no_signal"
SHARES = ("accuracy", "format", "truncated", "diversity")
AGAINST = {"start": "at the start", "best": "at best", "before": "before"}


@dataclass(frozen=True)
class AlertSpan:
    """Rollouts without a break, from 0 and both ends included, in which an alert was on; ``now``: in the last too.

    ``evidence`` says which numbers moved; empty where the alert had been told of shortly before.
    """

    alert: str
    first: int
    last: int
    now: bool
    evidence: str = ""

    def as_json(self) -> dict[str, Any]:
        """The span as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        which = f"rollout {self.first + 1}" if self.first == self.last else f"rollouts {self.first + 1}-{self.last + 1}"
        newest = " (the newest)" if self.now else ""
        evidence = f": {self.evidence}" if self.evidence else ""
        return f"{self.alert.replace('_', ' ')}, {which}{newest}{evidence}"


def said(move: Mapping[str, Any]) -> str:
    """A number's move, as `accuracy 39.1% from 59.7% at best`."""
    form = "{:.1%}" if move["number"] in SHARES else "{:.3g}"
    after, before = form.format(move["after"]), form.format(move["before"])
    return f"{move['number'].replace('_', ' ')} {after} from {before} {AGAINST[move['against']]}"


def alerts_on(row: Mapping[str, Any]) -> str:
    """The alerts that a line of metrics.jsonl says are on, for people; empty where none is."""
    on = (name.removeprefix(PREFIX) for name in row if name.startswith(PREFIX) and row[name])
    return ", ".join(name.replace("_", " ") for name in on)


def alert_spans(rows: Sequence[Mapping[str, Any]]) -> list[AlertSpan]:
    """The spans of every alert, by its beginning; ``rows`` are the lines of metrics.jsonl, several for a rollout."""
    state: dict[str, dict[int, bool]] = {}
    evidence: dict[tuple[str, int], str] = {}
    for row in rows:
        for begun in row.get(EVIDENCE, ()):
            evidence[begun["pattern"], begun["first"]] = ", ".join(map(said, begun["evidence"]))
        for name in row:
            if name.startswith(PREFIX):
                state.setdefault(name.removeprefix(PREFIX), {})[row["rollout"]] = bool(row[name])
    spans: list[AlertSpan] = []
    for alert, by_rollout in state.items():
        first: int | None = None
        for rollout, on in by_rollout.items():
            if on and first is None:
                first = rollout
            elif not on and first is not None:
                spans.append(AlertSpan(alert, first, rollout - 1, now=False, evidence=evidence.get((alert, first), "")))
                first = None
        if first is not None:
            last = max(by_rollout)
            spans.append(AlertSpan(alert, first, last, now=True, evidence=evidence.get((alert, first), "")))
    watch = SignalWatch()
    watch.see_all(rows)
    spans = [replace(span, evidence=watch.evidence(span)) if span.alert == NO_SIGNAL else span for span in spans]
    return sorted(spans, key=lambda span: (span.first, span.alert))


# Rollouts in a row without a signal before an alert: a single one is chance where few prompts are hard.
ROLLOUTS = 3
# It is not told again within so many rollouts.
PAUSE = 10
# From this share of cut completions on, the limit is taken for the reason that none was right.
MOSTLY_CUT = 0.5


class SignalWatch:
    """Follows a run's lines of metrics.jsonl; of a rollout the first line counts."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._rows: dict[int, Mapping[str, Any]] = {}
        self.see_all(rows)

    def see(self, row: Mapping[str, Any]) -> None:
        """Take in a line, or what will become one."""
        if "nonzero_advantage" in row:
            self._rows.setdefault(row["rollout"], row)

    def see_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in the lines so far."""
        for row in rows:
            self.see(row)

    def on(self, rollout: int) -> bool:
        """Whether ``rollout`` and those before it, ``ROLLOUTS`` in all, had no signal."""
        return rollout + 1 >= ROLLOUTS and all(map(self._idle, range(rollout + 1 - ROLLOUTS, rollout + 1)))

    def begins(self, rollout: int) -> bool:
        """Whether ``rollout`` raises an alert: the signal is missing now, and was not in the rollouts before."""
        return self.on(rollout) and not any(map(self.on, range(max(0, rollout - PAUSE), rollout)))

    def fields(self, rollout: int) -> dict[str, Any]:
        """What every line of ``rollout`` says; nothing where the training samples nothing."""
        return {f"{PREFIX}{NO_SIGNAL}": int(self.on(rollout))} if rollout in self._rows else {}

    def sentence(self) -> str:
        """The newest rollouts, why nothing is learned of them, and what helps."""
        newest = max(self._rows)
        why, help_ = _cause([self._rows[rollout] for rollout in range(newest + 1 - ROLLOUTS, newest + 1)])
        return f"no signal: in the last {ROLLOUTS} rollouts no completion had an advantage: {why}. {help_}"

    def evidence(self, span: AlertSpan) -> str:
        """What an alert's rollouts, and those that raised it, have in common."""
        rollouts = range(span.first + 1 - ROLLOUTS, span.last + 1)
        why, help_ = _cause([self._rows[rollout] for rollout in rollouts if rollout in self._rows])
        return f"no completion had an advantage since rollout {rollouts[0] + 1}: {why}. {help_}"

    def ending(self) -> str | None:
        """The closing words of a run on it; None where nothing was reported."""
        if not any(map(self.on, self._rows)):
            return None
        idle = [row for rollout, row in self._rows.items() if self._idle(rollout)]
        why, help_ = _cause(idle)
        if len(idle) == len(self._rows):
            return f"nothing was learned: in none of {len(idle)} rollouts had a completion an advantage: {why}. {help_}"
        ended = f" and the run ended so. {help_}" if self.on(max(self._rows)) else " and the run got over it."
        return (
            f"{len(idle)} of {len(self._rows)} rollouts had no signal: in them no completion had an advantage ({why}),"
            f"{ended}"
        )

    def _idle(self, rollout: int) -> bool:
        return rollout in self._rows and self._rows[rollout]["nonzero_advantage"] == 0


def _cause(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Why no completion of these rollouts had an advantage, and what helps, as two texts.

    A completion that differs from the others of its problem has one, so the rewards of each problem were equal (or,
    where a method learns of right or of wrong completions alone, there were none).
    """

    def mean(name: str) -> float | None:
        values = [value for row in rows if (value := number(row.get(name))) is not None]
        return sum(values) / len(values) if values else None

    accuracy, cut = mean("accuracy"), mean("truncated")
    reasons = {key.partition("/")[2]: mean(key) or 0.0 for row in rows for key in row if key.startswith("reason/")}
    share, reason = max(((share, reason) for reason, share in reasons.items()), default=(0.0, "wrong"))
    mostly = f"; {share:.0%} {reason.replace('_', ' ')}" if reason != "wrong" else ""
    reward = mean("reward")
    paid = f"mean reward {reward:.3g}" if reward is not None else "no reward is recorded"
    if mean("unscorable") == 1.0:
        return (
            f"none could be scored{mostly}",
            "rollouts/ in the run's folder holds each response and why the reward gave no number.",
        )
    if accuracy == 1.0:
        return f"all were right ({paid})", "Nothing is left to learn here: take harder problems."
    if accuracy == 0.0 and cut is not None and cut >= MOSTLY_CUT:
        return (
            f"none was right, {cut:.0%} were cut at the token limit ({paid})",
            "Raise rollout.max_new_tokens, or take a model that answers sooner.",
        )
    if accuracy == 0.0:
        return (
            f"none was right ({paid}{mostly})",
            "See what the model is given (`rlvr tasks show`); take easier problems or a model that solves some of "
            "them, or teach it first (--method sft).",
        )
    right = "" if accuracy is None else f", {accuracy:.0%} right"
    return (
        f"those of each problem were rewarded alike ({paid}{right})",
        "Raise rollout.group_size or rollout.temperature, or leave out problems that are always or never solved "
        "(`rlvr tasks filter`).",
    )
