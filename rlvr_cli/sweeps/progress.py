"""How far each trial is, read off what its run records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlvr_cli.core.files import number, tail_jsonl
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
    row: dict[str, Any] = next(reversed(tail_jsonl(run.metrics_path, TAIL_BYTES)), {})
    step = int(number(row.get("step")) or 0)
    rollout = step * entry.rollouts // entry.steps
    left = None
    if look.state == "running":
        timings = tail_jsonl(run.timings_path, TAIL_BYTES)
        seconds = [taken for timing in timings if (taken := number(timing.get("seconds"))) is not None]
        left = (entry.steps - step) * sum(seconds) / len(seconds) if seconds else None
    return Standing(look, rollout, number(row.get("reward")), number(row.get("accuracy")), left)
