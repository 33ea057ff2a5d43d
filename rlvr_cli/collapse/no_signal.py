"""A training that learns nothing: no completion has an advantage. All is a function of the lines of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlvr_cli.runs.alerts import NO_SIGNAL, PREFIX

# Rollouts in a row without a signal before one is told: a single one is chance where few prompts are hard.
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
        """Whether one is told after ``rollout``: it is on, and was not in the rollouts before."""
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
