"""How far each trial is, read off what its run records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.sweeps.folder import Look, Plan, SweepDir

TAIL_BYTES = 16_384


@dataclass(frozen=True)
class Standing:
    """A trial with its last numbers; ``left`` are the seconds that it takes still, by its latest steps."""

    look: Look
    rollout: int
    reward: float | None
    accuracy: float | None
    left: float | None

    def as_json(self) -> dict[str, Any]:
        """What `rlvr sweep status --json` says of the trial."""
        entry, look = self.look.entry, self.look
        return {
            "name": entry.name,
            "id": entry.id,
            "run": entry.run,
            "method": entry.method,
            "seed": entry.seed,
            "varies": entry.varies,
            "state": look.state,
            "rollout": self.rollout,
            "rollouts": entry.rollouts,
            "reward": self.reward,
            "accuracy": self.accuracy,
            "seconds_left": self.left,
            "attempts": look.attempts,
            "failures": look.failures,
            "reason": look.reason,
        }


def standings(sweep: SweepDir, plan: Plan) -> list[Standing]:
    """How far every trial is that the sweep file names."""
    return [_standing(sweep, look) for look in sweep.looks(plan)]


def _standing(sweep: SweepDir, look: Look) -> Standing:
    entry, run = look.entry, sweep.run_dir(look.entry)
    row: dict[str, Any] = next(reversed(_tail(run.metrics_path)), {})
    step = int(row.get("step", 0))
    rollout = step * entry.rollouts // entry.steps
    left = None
    if look.state == "running":
        seconds = [float(timing["seconds"]) for timing in _tail(run.timings_path) if "seconds" in timing]
        left = (entry.steps - step) * sum(seconds) / len(seconds) if seconds else None
    return Standing(look, rollout, row.get("reward"), row.get("accuracy"), left)


def _tail(path: Path) -> list[dict[str, Any]]:
    """The last whole lines of a file of JSON lines; none where it is missing, or is being cut at this moment."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - TAIL_BYTES))
            lines = stream.read().split(b"\n")
    except FileNotFoundError:
        return []
    rows = []
    for line in lines[0 if size <= TAIL_BYTES else 1 : -1]:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
