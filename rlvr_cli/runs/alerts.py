"""When a run's alerts were on, from its lines of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "alert/"


@dataclass(frozen=True)
class Span:
    """Rollouts without a break, from 0 and both ends included, in which an alert was on; ``now``: in the last too."""

    alert: str
    first: int
    last: int
    now: bool

    def as_json(self) -> dict[str, Any]:
        """The span as JSON values."""
        return {"alert": self.alert, "first": self.first, "last": self.last, "now": self.now}

    def __str__(self) -> str:
        which = f"rollout {self.first + 1}" if self.first == self.last else f"rollouts {self.first + 1}-{self.last + 1}"
        return f"{self.alert.replace('_', ' ')}, {which}{' (the newest)' if self.now else ''}"


def alert_spans(rows: Sequence[Mapping[str, Any]]) -> list[Span]:
    """The spans of every alert, by its beginning; ``rows`` are the lines of metrics.jsonl, several for a rollout."""
    state: dict[str, dict[int, bool]] = {}
    for row in rows:
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
                spans.append(Span(alert, first, rollout - 1, now=False))
                first = None
        if first is not None:
            spans.append(Span(alert, first, max(by_rollout), now=True))
    return sorted(spans, key=lambda span: (span.first, span.alert))
