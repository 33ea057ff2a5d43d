"""From the numbers of trainings to the outcome of each claim; what fails is said, and fails its claim alone."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import write_json
from rlvr_cli.ledger import exact
from rlvr_cli.ledger.claims import ClaimSet
from rlvr_cli.ledger.measures import NoValue, number_of, short_hash
from rlvr_cli.ledger.schema import Call, Claim
from rlvr_cli.ledger.trainings import Folders
from rlvr_cli.ledger.verdicts import DECIDED, ClaimVerdict, judge_claim
from rlvr_cli.runs.environment import hardware, versions
from rlvr_cli.runs.folder import now

# All numbers of a call for a seed; raises RunError, saying why there are none.
Numbers = Callable[[Call, int], Mapping[str, Any]]


@dataclass(frozen=True)
class ClaimResult:
    """What a claim came to with one set of seeds, as the results file has it.

    Attributes:
        asked: a hash of all that decides it; another one means that the claim was changed since.
        seeds: those that ``values`` are of, in their order. None for an exact statement.
        sides: of a contrast, the numbers of both arms, seed by seed.
        reason: why it failed, or why it is undecided where something else than the interval says so.
    """

    claim: str
    asked: str
    verdict: ClaimVerdict
    seeds: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    sides: list[list[float]] = field(default_factory=list)
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    needed: int | None = None
    reason: str | None = None

    @property
    def exact(self) -> bool:
        """Whether it is a number that follows from a definition."""
        return bool(self.values) and not self.seeds


SAME = "both arms have the same number in every seed, to the last digit: there is no difference to judge"


def asked(claim: Claim, claim_set: ClaimSet) -> str:
    """The hash of what decides the outcome of ``claim``: not its words."""
    content: dict[str, Any] = claim.model_dump(mode="json", by_alias=True)
    for words in ("statement", "paper_value", "place", "note", "full", "cannot_fail"):
        content.pop(words)
    arms = {name: claim_set.arms[name].model_dump(mode="json") for name in claim.arms}
    for arm in arms.values():
        arm.pop("about")
        if arm["base"] in claim_set.recipes:
            arm["recipe"] = claim_set.recipes[arm["base"]].read_text(encoding="utf-8")
            arm["bases"] = "one a seed"  # earlier results had one for all
    return short_hash({"claim": content, "arms": arms})


def claim_result(claim: Claim, claim_set: ClaimSet, seeds: Sequence[int], numbers: Numbers) -> ClaimResult:
    """The outcome of ``claim`` over ``seeds``."""
    hashed = asked(claim, claim_set)
    measure = claim.measure
    try:
        if measure.exact is not None:
            value = exact.compute_exact(measure.exact, measure.options)
            found = judge_claim([value], claim.rule, exact=True)
            return ClaimResult(
                claim.id, hashed, found.verdict, values=[value], mean=found.mean, low=found.low, high=found.high
            )
        rows, without = _rows(claim, seeds, numbers)
        if without:
            return ClaimResult(claim.id, hashed, "undecided", list(seeds), reason="; ".join(without))
        values = [_contrast(claim, row) for row in rows]
        if claim.contrast is not None and claim.rule.within is None and all(of == against for of, against in rows):
            return ClaimResult(claim.id, hashed, "undecided", list(seeds), values, rows, reason=SAME)
        found = judge_claim(values, claim.rule)
    except (RunError, UserError) as error:
        return ClaimResult(claim.id, hashed, "failed", reason=" ".join(str(error).split("\n")))
    return ClaimResult(
        claim.id,
        hashed,
        found.verdict,
        list(seeds),
        values,
        rows if claim.contrast is not None else [],
        found.mean,
        found.low,
        found.high,
        found.needed,
    )


def _rows(claim: Claim, seeds: Sequence[int], numbers: Numbers) -> tuple[list[list[float]], list[str]]:
    """The numbers of each seed, and what has none: the other seeds alone would be a choice of those that fit.

    Raises RunError for an analysis or a training that failed.
    """
    rows: list[list[float]] = []
    without: list[str] = []
    for seed in seeds:
        rows.append([])
        for call in claim.calls():
            try:
                rows[-1].append(_number(claim, call, seed, numbers))
            except NoValue as nothing:
                without.append(str(nothing))
    return rows, list(dict.fromkeys(without))


def _number(claim: Claim, call: Call, seed: int, numbers: Numbers) -> float:
    try:
        return number_of(numbers(call, seed), call.number, claim.measure.absent)
    except NoValue as nothing:
        raise NoValue(f"{call.arm}-s{seed}: {nothing}") from None
    except RunError as error:
        raise RunError(f"{call.analysis} of {call.arm}-s{seed}: {error}") from None


def _contrast(claim: Claim, row: Sequence[float]) -> float:
    """The measure of one seed. Raises RunError for a ratio of what has none."""
    if claim.contrast is None:
        return row[0]
    of, against = row
    if claim.contrast.by == "difference":
        return of - against
    if against == 0 or (claim.contrast.by == "log_ratio" and of / against <= 0):
        raise RunError(f"there is no {claim.contrast.by} of {of:g} and {against:g}.")
    return of / against if claim.contrast.by == "ratio" else math.log(of / against)


# How often a session says that it is still alive, seconds: one that is killed loses no more than this.
BEAT = 10.0


@dataclass(frozen=True)
class Results:
    """All outcomes of a set of seeds.

    Attributes:
        seconds: of wall time, over all sessions.
        machine: processor and cores; versions of what decides numbers.
    """

    scale: str
    seed_from: int
    outcomes: dict[str, ClaimResult] = field(default_factory=dict)
    seconds: float = 0.0
    sessions: int = 0
    workers: int = 1
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def decided(self) -> int:
        """How many claims have a verdict either way."""
        return sum(one.verdict in DECIDED for one in self.outcomes.values())

    @property
    def made_with(self) -> str:
        """`rlvr 0.1.0, torch 2.13.0+cpu`."""
        packages = {name: version for name, version in self.machine.items() if name not in ("processor", "cores")}
        return ", ".join(f"{name} {version}" for name, version in packages.items())

    def write(self, path: Path) -> None:
        """Replace the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, asdict(self))


def read_results(path: Path) -> Results:
    """Raises RunError for a file that is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        outcomes = {name: ClaimResult(**one) for name, one in content["outcomes"].items()}
        return Results(**{**content, "outcomes": outcomes})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read as results of the ledger ({error}).") from error


def all_results(folders: Folders) -> list[Results]:
    """Of every set of seeds that there is, by the first seed."""
    found = [read_results(path) for path in folders.own.glob(f"{folders.scale}-seeds-*.json")]
    return sorted(found, key=lambda one: one.seed_from)


def this_machine() -> dict[str, Any]:
    """The page's words on the machine."""
    found = hardware()
    packages = {name: version for name, version in versions().items() if name in ("rlvr", "torch", "trl")}
    return {"processor": found["processor"], "cores": found["cores"], **packages}


@contextmanager
def session(folder: Path) -> Iterator[None]:
    """Write down how long the context lasts, as it goes: a session that is killed counts too."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{now().replace(':', '')}-{time.monotonic_ns()}.json"
    begun = time.monotonic()
    over = threading.Event()

    def beat() -> None:
        while True:
            write_json(path, {"seconds": round(time.monotonic() - begun, 1)})
            if over.wait(BEAT):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        write_json(path, {"seconds": round(time.monotonic() - begun, 1)})


def time_taken(folder: Path) -> tuple[float, int]:
    """Seconds over all sessions that ended or were killed, and how many there were."""
    seconds = [float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) for path in folder.glob("*.json")]
    return sum(seconds), len(seconds)
