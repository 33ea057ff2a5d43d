"""A run's alerts from its lines of metrics.jsonl: when each was on, and the one of a training that learns nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

PREFIX = "alert/"
# The key with the alerts that begin, and the numbers that moved.
EVIDENCE = "collapse"
NO_SIGNAL = "no_signal"
# What an alert without numbers of its own means.
MEANS = {NO_SIGNAL: "no completion had an advantage, so nothing was learned"}
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


def alerts_on(row: Mapping[str, Any]) -> list[str]:
    """The alerts that a line of metrics.jsonl says are on."""
    return [name.removeprefix(PREFIX) for name in row if name.startswith(PREFIX) and row[name]]


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
    spans = [replace(span, evidence=span.evidence or MEANS.get(span.alert, "")) for span in spans]
    return sorted(spans, key=lambda span: (span.first, span.alert))


# Rollouts in a row without a signal before an alert: a single one is chance where few prompts are hard.
ROLLOUTS = 3
# It is not told again within so many rollouts.
PAUSE = 10


class SignalWatch:
    """Follows a run's lines of metrics.jsonl; of a rollout the first line counts."""

    def __init__(self) -> None:
        self._rows: dict[int, Mapping[str, Any]] = {}

    def see(self, row: Mapping[str, Any]) -> None:
        """Take in a line, or what will become one."""
        if "nonzero_advantage" in row:
            self._rows.setdefault(row["rollout"], row)

    def see_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in the lines so far."""
        for row in rows:
            self.see(row)

    @property
    def rollouts(self) -> int:
        """How many were seen."""
        return len(self._rows)

    @property
    def idle(self) -> int:
        """How many of them had no signal."""
        return sum(map(self._idle, self._rows))

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
        """The newest rollouts, with the numbers that show why nothing is learned of them."""
        return f"no signal: in the last {ROLLOUTS} rollouts no completion had an advantage ({self._numbers()})"

    def ending(self) -> str | None:
        """What a finished run says of it; None where nothing was told and its end had a signal."""
        if not self._rows or not any(map(self.on, self._rows)):
            return None
        if self.idle == self.rollouts:
            return (
                f"nothing was learned: in none of the {self.rollouts} rollouts a completion had an advantage "
                f"({self._numbers()})"
            )
        return f"{self.idle} of {self.rollouts} rollouts had no signal: no completion had an advantage"

    def _idle(self, rollout: int) -> bool:
        return rollout in self._rows and self._rows[rollout]["nonzero_advantage"] == 0

    def _numbers(self) -> str:
        newest = self._rows[max(self._rows)]
        shown = {"mean reward": "{:.3g}", "accuracy": "{:.1%}", "truncated": "{:.1%}"}
        keys = {"mean reward": "reward"}
        known = ((name, form, newest.get(keys.get(name, name))) for name, form in shown.items())
        return ", ".join(f"{name} {form.format(value)}" for name, form, value in known if value is not None)
