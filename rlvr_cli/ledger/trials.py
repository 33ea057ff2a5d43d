"""The trainings that claims need, as one sweep: a trial an arm and seed, each trained once whoever asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvr_cli.core.yaml import dump
from rlvr_cli.ledger.bases import Base
from rlvr_cli.ledger.book import Book
from rlvr_cli.ledger.folders import Folders
from rlvr_cli.ledger.schema import LAB, Claim
from rlvr_cli.sweeps.axes import NAME, SEED
from rlvr_cli.sweeps.expand import Sweep, expand
from rlvr_cli.sweeps.spec import SweepFile, SweepSpec

# What a worker in the lab has to itself.
ONE_CORE = {"cores": 1}


@dataclass(frozen=True, order=True)
class Need:
    """A training that a claim looks at."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-s{self.seed}"

    def base(self, book: Book) -> Base:
        """What it begins with."""
        return Base(book.arms[self.arm].base, self.seed)


def needs(claims: Sequence[Claim], book: Book, seed_from: int) -> list[Need]:
    """Every training that ``claims`` look at, seed by seed, so that what is broken shows early."""
    seeds: dict[str, int] = {}
    for claim in claims:
        for arm in claim.arms:
            seeds[arm] = max(seeds.get(arm, 0), claim.seeds)
    most = max(seeds.values(), default=0)
    return [
        Need(arm, seed_from + number)
        for number in range(most)
        for arm in book.arms
        if arm in seeds and number < seeds[arm]
    ]


def make_sweep(
    wanted: Sequence[Need], book: Book, folders: Folders, bases: Mapping[Base, Path], command: Sequence[str]
) -> Sweep:
    """The sweep whose trials are ``wanted``, in the ledger's folder.

    Args:
        bases: the model folder of each base but `lab`.
        command: what continues it.
    Raises:
        UserError: what is wrong with the arms' configurations, with the lines of arms.yaml.
    """
    points = [_point(need, book, bases, alone=folders.scale == "lab") for need in wanted]
    content: dict[str, Any] = {
        "name": folders.sweep_name,
        "set": {"run.dir": str(folders.root)},
        "list": points,
        **({"slots": ONE_CORE} if folders.scale == "lab" else {}),
    }
    lines = {("list", row): book.arm_lines[need.arm] for row, need in enumerate(wanted) if need.arm in book.arm_lines}
    file = SweepFile(book.arms_path, dump(content), SweepSpec.model_validate(content), dict(lines))
    return replace(expand(file), owner=tuple(command))


def _point(need: Need, book: Book, bases: Mapping[Base, Path], *, alone: bool) -> dict[str, Any]:
    arm = book.arms[need.arm]
    model = {} if arm.base == LAB else {"model.name": str(bases[need.base(book)])}
    # Sums depend on the number of threads: one gives everyone the same numbers.
    threads = {"run.threads": 1} if alone else {}
    # A copy: YAML would write what two points share as an alias.
    return {NAME: need.name, **threads, **model, **deepcopy(arm.set), SEED: need.seed}
