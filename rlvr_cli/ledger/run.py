"""`rlvr reproduce`: builds, trains and measures what is missing, then judges. Everything that is done is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import number, read_jsonl, sole_writer
from rlvr_cli.launch.stopping import say
from rlvr_cli.ledger.claim_results import (
    ClaimResult,
    Results,
    claim_result,
    read_results,
    session,
    this_machine,
    time_taken,
)
from rlvr_cli.ledger.claims import ClaimSet
from rlvr_cli.ledger.full import lacking
from rlvr_cli.ledger.jobs import Job, Stopped, carry_out
from rlvr_cli.ledger.measures import AnalysisNumbers
from rlvr_cli.ledger.schema import Claim
from rlvr_cli.ledger.trainings import (
    ONE_CORE,
    ArmSeed,
    Folders,
    SeededBase,
    base_folders,
    is_built,
    make_sweep,
    needed_trainings,
)
from rlvr_cli.sweeps.driver import Orders, run_sweep
from rlvr_cli.sweeps.expand import Sweep
from rlvr_cli.sweeps.folder import SweepDir, TrialStatus
from rlvr_cli.sweeps.prepare import cost_of
from rlvr_cli.sweeps.slots import Slot, slots

LOG = "workers.txt"


@dataclass(frozen=True)
class Order:
    """What is to be reproduced.

    Attributes:
        workers: processes at a time; None for one a core.
        command: what continues it.
    """

    claims: tuple[Claim, ...]
    claim_set: ClaimSet
    folders: Folders
    seed_from: int
    workers: int | None
    command: tuple[str, ...]

    @property
    def needs(self) -> list[ArmSeed]:
        """The trainings."""
        return needed_trainings(self.claims, self.claim_set, self.seed_from)

    @property
    def bases(self) -> dict[SeededBase, Path]:
        """The folder of each base that is needed next to `lab`."""
        return base_folders({need.base(self.claim_set) for need in self.needs}, self.claim_set, self.folders)

    def slots(self) -> list[Slot]:
        """What each worker has to itself: in the lab a core. Raises UserError for more workers than cores."""
        return slots(self.workers, ONE_CORE if self.folders.scale == "lab" else {})

    def sweep(self) -> Sweep | None:
        """The trainings as a sweep; None where there are none. Raises UserError as `make_sweep`."""
        wanted = self.needs
        return make_sweep(wanted, self.claim_set, self.folders, self.bases, self.command) if wanted else None


def reproduce(order: Order, console: Console) -> Results:
    """Bring the claims to their verdicts: the results of the set of seeds, with those of earlier claims.

    Raises:
        UserError: bad input, before anything is started.
        RunError: a base that cannot be built, workers that fail.
        Stopped: a signal came; run it again to continue.
    """
    own, sweep = order.slots(), order.sweep()
    if order.folders.scale == "full" and (missing := lacking(sweep)):
        raise UserError([f"--scale full: {said}" for said in missing])
    folders = order.folders
    try:
        folders.own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folders.own}: cannot be created ({error.strerror}). Give another --runs.") from error
    with sole_writer(folders.own, "Wait for it, or stop it."), session(folders.sessions(order.seed_from)):
        build_bases(order, own, console)
        statuses = {} if sweep is None else _train(order, sweep, own, console)
        outcomes = _judge(order, statuses, own, console)
    return _keep(order, outcomes, len(own))


def build_bases(order: Order, own: Sequence[Slot], console: Console) -> None:
    """Build the bases that are missing. Raises RunError for one that is damaged or fails."""
    missing = {base: folder for base, folder in order.bases.items() if not is_built(folder)}
    jobs = [base.job(order.claim_set.recipes[base.recipe], folder) for base, folder in missing.items()]
    failed = _carry_out(order, jobs, own, "bases", console)
    if failed:
        raise RunError("\n".join(f"base {jobs[number].name}: {why}" for number, why in failed.items()))


def _train(order: Order, sweep: Sweep, own: Sequence[Slot], console: Console) -> dict[ArmSeed, TrialStatus]:
    """Train what is not trained; how each training stands."""
    folder = SweepDir(order.folders.sweep)
    statuses = trained(order, sweep)
    if all(status is not None and status.state in ("finished", "failed") for status in statuses.values()):
        say(console, f"trainings: {len(statuses)} of {len(statuses)} are there")
    else:
        ended = run_sweep(sweep, Orders(len(own)), console=console)
        if ended.exit_code > 1:
            raise Stopped(ended.exit_code)
        statuses = trained(order, sweep)
    found = {need: status for need, status in statuses.items() if status is not None}
    for need, status in found.items():
        if status.state == "failed":
            say(
                console,
                f"{need.name} failed: {status.reason}; try it again: rlvr sweep retry {folder.path} {need.name}",
            )
    return found


def trained(order: Order, sweep: Sweep) -> dict[ArmSeed, TrialStatus | None]:
    """How the training of each need stands; None for one that the folder does not know."""
    folder = SweepDir(order.folders.sweep)
    if not folder.exists():
        return dict.fromkeys(order.needs)
    plan = folder.read_plan()
    entries = {entry.id: entry for entry in plan.trials}
    found: dict[ArmSeed, TrialStatus | None] = {}
    for need, trial in zip(order.needs, sweep.trials, strict=True):
        found[need] = folder.status(plan, entries[trial.id]) if trial.id in entries else None
    return found


def _judge(
    order: Order, statuses: Mapping[ArmSeed, TrialStatus], own: Sequence[Slot], console: Console
) -> list[ClaimResult]:
    """Measure what is not measured, and judge."""
    numbers = AnalysisNumbers(order.folders, statuses)
    missing = numbers.missing(order.claims, order.seed_from)
    for path in missing:
        if path.exists():
            say(console, f"{path}: is damaged; it is computed again")
    jobs = [reading.job(order.folders.measures) for reading in missing.values()]
    failed = _carry_out(order, jobs, own, "measures", console)
    numbers.failed = {path: failed[number] for number, path in enumerate(missing) if number in failed}
    return [
        claim_result(claim, order.claim_set, claim.seeds_from(order.seed_from), numbers.numbers)
        for claim in order.claims
    ]


def _carry_out(order: Order, jobs: Sequence[Job], own: Sequence[Slot], what: str, console: Console) -> dict[int, str]:
    """Why jobs failed, by their places; the others are done."""
    ends = carry_out(jobs, own, order.folders.own / LOG, what, console)
    return {number: why for number, why in enumerate(ends) if why is not None}


def _keep(order: Order, outcomes: Sequence[ClaimResult], workers: int) -> Results:
    """The results with these outcomes, and with those of other claims that the file had."""
    path = order.folders.results(order.seed_from)
    before = read_results(path).outcomes if path.exists() else {}
    seconds, sessions = time_taken(order.folders.sessions(order.seed_from))
    found = Results(
        scale=order.folders.scale,
        seed_from=order.seed_from,
        outcomes={**before, **{one.claim: one for one in outcomes}},
        seconds=seconds,
        sessions=sessions,
        workers=workers,
        machine=this_machine(),
    )
    found.write(path)
    return found


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


def plan_reproduction(order: Order) -> LedgerPlan:
    """Looks at what there is, and writes nothing. Raises UserError as a run would."""
    sweep, workers = order.sweep(), len(order.slots())
    statuses = {} if sweep is None else trained(order, sweep)
    costs = {} if sweep is None else dict(zip(order.needs, map(cost_of, (t.config for t in sweep.trials)), strict=True))
    rows = []
    for arm in dict.fromkeys(need.arm for need in order.needs):
        own = [need for need in order.needs if need.arm == arm]
        states = [status.state for need in own if (status := statuses[need]) is not None]
        counted = (len(own), states.count("finished"), states.count("failed"))
        kind = order.claim_set.arms[arm]
        model = str(kind.set.get("model.name", kind.base))
        rows.append(ArmPlan(arm, model, *counted, costs[own[0]].rollouts))
    return LedgerPlan(
        claims=len(order.claims),
        bases=[str(base) for base, folder in order.bases.items() if not is_built(folder)],
        arms=rows,
        measures=_measures(order),
        workers=workers,
        seconds=_seconds(order, rows, [status for status in statuses.values() if status is not None], workers),
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


def _seconds(order: Order, rows: Sequence[ArmPlan], statuses: Sequence[TrialStatus], workers: int) -> float | None:
    """Of what is to be trained: an arm's rollouts as long as its own that are done, else as the mean of all."""
    pace = _pace(SweepDir(order.folders.sweep), statuses)
    if not pace:
        return None
    mean = sum(pace.values()) / len(pace)
    return sum(row.to_do * row.rollouts * pace.get(row.arm, mean) for row in rows) / workers


def _pace(folder: SweepDir, statuses: Sequence[TrialStatus]) -> Mapping[str, float]:
    """Seconds a rollout, by arm, of the last finished training of each."""
    found: dict[str, float] = {}
    for status in statuses:
        if status.trained:
            rows = read_jsonl(folder.run_dir(status.entry).timings_path)
            seconds = sum(number(row.get("seconds")) or 0.0 for row in rows)
            found[status.entry.name.rpartition("-s")[0]] = seconds / status.entry.rollouts
    return found
