"""The trainings that claims need and the bases that they begin with: where they are kept, and which there are.

The trainings are one sweep: a trial an arm and seed, each trained once whoever asks for it. The bases are built by the
lab's recipes, one a recipe and seed, once, and checked before they are used. Each seed of the ledger has a base of its
own: a method's result differs between bases of one recipe by more than between seeds on one of them, so that an
interval over seeds alone would be one about that base.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.yaml import dump
from rlvr_cli.ledger.claims import ClaimSet
from rlvr_cli.ledger.jobs import Job
from rlvr_cli.ledger.schema import LAB, Claim
from rlvr_cli.runs.seal import file_hash
from rlvr_cli.sweeps.axes import NAME, SEED
from rlvr_cli.sweeps.expand import Sweep, expand
from rlvr_cli.sweeps.spec import SweepFile, SweepSpec

Scale = Literal["lab", "full"]


@dataclass(frozen=True)
class Folders:
    """`<run.dir>/ledger-lab` with the trainings, `ledger-bases` with the models that they begin with, and `ledger`.

    Attributes:
        root: run.dir, absolute: a base's path is a part of what a training is known by.
    """

    root: Path
    scale: Scale = "lab"

    @property
    def sweep_name(self) -> str:
        return f"ledger-{self.scale}"

    @property
    def sweep(self) -> Path:
        return self.root / self.sweep_name

    @property
    def bases(self) -> Path:
        return self.root / "ledger-bases"

    @property
    def own(self) -> Path:
        return self.root / "ledger"

    @property
    def measures(self) -> Path:
        return self.own / "measures"

    def results(self, seed_from: int) -> Path:
        """The verdicts of the set of seeds that begins with ``seed_from``."""
        return self.own / f"{self.scale}-seeds-{seed_from}.json"

    def sessions(self, seed_from: int) -> Path:
        """How long each time of running took, of that set."""
        return self.own / f"{self.scale}-seeds-{seed_from}-sessions"


MANIFEST = "lab_manifest.json"


class SeededBase(NamedTuple):
    """The base of a recipe, built with a seed."""

    recipe: str
    seed: int

    def __str__(self) -> str:
        return f"{self.recipe}, seed {self.seed}"

    def job(self, recipe: Path, folder: Path) -> Job:
        """What builds it into ``folder``."""
        arguments = {"recipe": str(recipe.resolve()), "seed": self.seed, "folder": str(folder)}
        return Job(str(self), f"{__name__}:build_base", arguments)


def base_folder(base: SeededBase, recipe: Path, folders: Folders) -> Path:
    """Where a base is kept: another recipe or seed, another place. Raises UserError for no valid recipe."""
    from rlvr_cli.lab import LABS

    return folders.bases / f"{base.recipe}-s{base.seed}-{LABS['kk'].read_recipe(recipe).fingerprint()[:12]}"


def base_folders(bases: Iterable[SeededBase], claim_set: ClaimSet, folders: Folders) -> dict[SeededBase, Path]:
    """The folder of each base but `lab`, built or not."""
    return {
        base: base_folder(base, claim_set.recipes[base.recipe], folders) for base in sorted(bases) if base.recipe != LAB
    }


def is_built(folder: Path) -> bool:
    """Whether a whole base is in ``folder``.

    Raises:
        RunError: one that is damaged.
    """
    if not folder.exists():
        return False
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        whole = all(
            file_hash(folder / file) == manifest[key]
            for file, key in (("model.safetensors", "weights_sha256"), ("tokenizer.json", "tokenizer_sha256"))
        )
    except (OSError, ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise RunError(
            f"{folder}: this base is damaged (it is not what its {MANIFEST} says). Remove it, and run again."
        )
    return True


def build_base(recipe: str, seed: int, folder: str) -> None:
    """Build the base; the folder appears complete or not at all."""
    from rlvr_cli.lab import LABS
    from rlvr_cli.lab.build import build

    lab = LABS["kk"]
    build(Path(folder), lab=lab, recipe=lab.read_recipe(Path(recipe)), seed=seed)


# What a worker in the lab has to itself.
ONE_CORE = {"cores": 1}


@dataclass(frozen=True, order=True)
class ArmSeed:
    """A training that a claim looks at."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-s{self.seed}"

    def base(self, claim_set: ClaimSet) -> SeededBase:
        """What it begins with."""
        return SeededBase(claim_set.arms[self.arm].base, self.seed)


def needed_trainings(claims: Sequence[Claim], claim_set: ClaimSet, seed_from: int) -> list[ArmSeed]:
    """Every training that ``claims`` look at, seed by seed, so that what is broken shows early."""
    seeds: dict[str, int] = {}
    for claim in claims:
        for arm in claim.arms:
            seeds[arm] = max(seeds.get(arm, 0), claim.seeds)
    most = max(seeds.values(), default=0)
    return [
        ArmSeed(arm, seed_from + number)
        for number in range(most)
        for arm in claim_set.arms
        if arm in seeds and number < seeds[arm]
    ]


def make_sweep(
    wanted: Sequence[ArmSeed],
    claim_set: ClaimSet,
    folders: Folders,
    bases: Mapping[SeededBase, Path],
    command: Sequence[str],
) -> Sweep:
    """The sweep whose trials are ``wanted``, in the ledger's folder.

    Args:
        bases: the model folder of each base but `lab`.
        command: what continues it.
    Raises:
        UserError: what is wrong with the arms' configurations, with the lines of arms.yaml.
    """
    points = [_point(need, claim_set, bases, alone=folders.scale == "lab") for need in wanted]
    content: dict[str, Any] = {
        "name": folders.sweep_name,
        "set": {"run.dir": str(folders.root)},
        "list": points,
        **({"slots": ONE_CORE} if folders.scale == "lab" else {}),
    }
    lines = {
        ("list", row): claim_set.arm_lines[need.arm]
        for row, need in enumerate(wanted)
        if need.arm in claim_set.arm_lines
    }
    file = SweepFile(claim_set.arms_path, dump(content), SweepSpec.model_validate(content), dict(lines))
    return replace(expand(file), owner=tuple(command))


def _point(need: ArmSeed, claim_set: ClaimSet, bases: Mapping[SeededBase, Path], *, alone: bool) -> dict[str, Any]:
    arm = claim_set.arms[need.arm]
    model = {} if arm.base == LAB else {"model.name": str(bases[need.base(claim_set)])}
    # Sums depend on the number of threads: one gives everyone the same numbers.
    threads = {"run.threads": 1} if alone else {}
    # A copy: YAML would write what two points share as an alias.
    return {NAME: need.name, **threads, **model, **deepcopy(arm.set), SEED: need.seed}
