"""When a run's alerts were on, from its lines of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
class Span:
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


def alert_spans(rows: Sequence[Mapping[str, Any]]) -> list[Span]:
    """The spans of every alert, by its beginning; ``rows`` are the lines of metrics.jsonl, several for a rollout."""
    state: dict[str, dict[int, bool]] = {}
    evidence: dict[tuple[str, int], str] = {}
    for row in rows:
        for begun in row.get(EVIDENCE, ()):
            evidence[begun["pattern"], begun["first"]] = ", ".join(map(said, begun["evidence"]))
        for name in row:
            if name.startswith(PREFIX):
                state.setdefault(name.removeprefix(PREFIX), {})[row["rollout"]] = bool(row[name])
    spans: list[Span] = []
    for alert, by_rollout in state.items():
        first: int | None = None
        for rollout, on in by_rollout.items():
            if on and first is None:
                first = rollout
            elif not on and first is not None:
                spans.append(Span(alert, first, rollout - 1, now=False, evidence=evidence.get((alert, first), "")))
                first = None
        if first is not None:
            last = max(by_rollout)
            spans.append(Span(alert, first, last, now=True, evidence=evidence.get((alert, first), "")))
    spans = [replace(span, evidence=span.evidence or MEANS.get(span.alert, "")) for span in spans]
    return sorted(spans, key=lambda span: (span.first, span.alert))
