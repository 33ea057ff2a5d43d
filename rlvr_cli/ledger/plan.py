"""What `rlvr reproduce --dry-run` shows: what there is, what is missing, and how long that may take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlvr_cli.core.files import number, read_jsonl
from rlvr_cli.ledger.bases import is_built
from rlvr_cli.ledger.full import lacking
from rlvr_cli.ledger.run import Order, trained
from rlvr_cli.sweeps.folder import Look, SweepDir
from rlvr_cli.sweeps.prepare import cost_of


@dataclass(frozen=True)
class ArmPlan:
    """The trainings of one arm: how many there are and are to come, and the rollouts of each."""

    arm: str
    base: str
    trainings: int
    done: int
    failed: int
    rollouts: int

    @property
    def to_do(self) -> int:
        return self.trainings - self.done - self.failed


@dataclass(frozen=True)
class LedgerPlan:
    """What a run of the ledger would do.

    Attributes:
        bases: to be built.
        measures: analyses of one training each, done or not.
        seconds: of training, on ``workers`` cores; None while no training is finished.
        lacking: what the full scale needs and this machine has not.
    """

    claims: int
    bases: list[str]
    arms: list[ArmPlan]
    measures: int
    workers: int
    seconds: float | None
    lacking: list[str]

    def as_json(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return {**asdict(self), "trainings_to_do": sum(arm.to_do for arm in self.arms)}


def make_plan(order: Order) -> LedgerPlan:
    """Looks at what there is, and writes nothing. Raises UserError as a run would."""
    sweep, workers = order.sweep(), len(order.slots())
    looks = {} if sweep is None else trained(order, sweep)
    costs = {} if sweep is None else dict(zip(order.needs, map(cost_of, (t.config for t in sweep.trials)), strict=True))
    rows = []
    for arm in dict.fromkeys(need.arm for need in order.needs):
        own = [need for need in order.needs if need.arm == arm]
        states = [look.state for need in own if (look := looks[need]) is not None]
        counted = (len(own), states.count("finished"), states.count("failed"))
        kind = order.book.arms[arm]
        model = str(kind.set.get("model.name", kind.base))
        rows.append(ArmPlan(arm, model, *counted, costs[own[0]].rollouts))
    return LedgerPlan(
        claims=len(order.claims),
        bases=[str(base) for base, folder in order.bases.items() if not is_built(folder)],
        arms=rows,
        measures=_measures(order),
        workers=workers,
        seconds=_seconds(order, rows, [look for look in looks.values() if look is not None], workers),
        lacking=lacking(sweep) if order.folders.scale == "full" else [],
    )


def _measures(order: Order) -> int:
    """How many analyses of one training the claims share."""
    wanted = {
        (call.arm, seed, call.analysis, json.dumps(dict(call.options), sort_keys=True), call.at.rollout, call.at.step)
        for claim in order.claims
        for call in claim.calls()
        for seed in claim.seeds_from(order.seed_from)
    }
    return len(wanted)


def _seconds(order: Order, rows: Sequence[ArmPlan], looks: Sequence[Look], workers: int) -> float | None:
    """Of what is to be trained: an arm's rollouts as long as its own that are done, else as the mean of all."""
    pace = _pace(SweepDir(order.folders.sweep), looks)
    if not pace:
        return None
    mean = sum(pace.values()) / len(pace)
    return sum(row.to_do * row.rollouts * pace.get(row.arm, mean) for row in rows) / workers


def _pace(folder: SweepDir, looks: Sequence[Look]) -> Mapping[str, float]:
    """Seconds a rollout, by arm, of the last finished training of each."""
    found: dict[str, float] = {}
    for look in looks:
        if look.trained:
            rows = read_jsonl(folder.run_dir(look.entry).timings_path)
            seconds = sum(number(row.get("seconds")) or 0.0 for row in rows)
            found[look.entry.name.rpartition("-s")[0]] = seconds / look.entry.rollouts
    return found
