"""The ledger at the papers' own scale: the same claims, whose arms are the recipes below configs/papers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import rlvr_cli
from rlvr_cli.config.load import leaves, load
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.launch.command import visible_gpus
from rlvr_cli.ledger.claims import NOT_OF_AN_ARM, ClaimSet
from rlvr_cli.ledger.schema import At, Claim, ClaimArm, ClaimContrast, Full, Side
from rlvr_cli.models.source import resolve_model
from rlvr_cli.sweeps.expand import Sweep
from rlvr_cli.sweeps.rows import config_source

RECIPES = Path("configs") / "papers"
# What a recipe may set and an arm may not: it brings its own model.
KEPT = ("model.name",)


def recipes_folder() -> Path:
    """The papers' recipes, of this folder or of the checkout that runs. Raises UserError where there are none."""
    for root in (Path(), Path(rlvr_cli.__file__).parents[1]):
        if (root / RECIPES).is_dir():
            return root / RECIPES
    raise UserError(f"--scale full: needs the papers' recipes ({RECIPES}), which are in the source tree; run it there.")


def at_full_scale(claim_set: ClaimSet, claims: Sequence[Claim], folder: Path) -> tuple[ClaimSet, tuple[Claim, ...]]:
    """The claim set and the claims with recipes in place of arms.

    Raises:
        UserError: claims that name no recipe, recipes that are not there or are no valid configuration.
    """
    problems: list[str] = []
    arms: dict[str, ClaimArm] = {}
    changed: list[Claim] = []
    for claim in claims:
        if claim.measure.exact is not None:
            changed.append(claim)
            continue
        if claim.full is None or (claim.contrast is not None and claim.full.against is None):
            problems.append(
                f"{claim.id}: names no recipe for the full scale (`full`). docs/papers/{claim.paper}.md says which "
                f"recipe stands for {claim.place}."
            )
            continue
        changed.append(_with_recipes(claim, claim.full))
        for file in filter(None, (claim.full.of, claim.full.against)):
            if arm_name(file) not in arms:
                try:
                    arms[arm_name(file)] = ClaimArm(set=recipe_values(folder / file))
                except UserError as error:
                    problems += [f"{claim.id}: {said}" for said in error.problems]
    if problems:
        raise UserError(problems)
    found = replace(claim_set, arms=arms, arm_lines={}, claims={claim.id: claim for claim in changed})
    return found, tuple(changed)


def arm_name(file: str) -> str:
    """The arm of a recipe, which names its trainings: `ar-lopti-table-1-orz-lopti`."""
    return re.sub(r"[^a-z0-9]+", "-", file.replace(".yaml:", "-"))


def recipe_values(path: Path) -> dict[str, Any]:
    """What the recipe `FILE:ROW` sets, by dotted keys; where and under which name it is kept is the ledger's affair.

    Raises:
        UserError: its file or row is not there, or it is no valid configuration.
    """
    loaded = load([config_source(path)], import_files=True)
    left_out = set(NOT_OF_AN_ARM) - set(KEPT)
    values = {".".join(place): value for place, value in leaves(loaded.config) if loaded.merged.set_by_user(place)}
    return {key: value for key, value in values.items() if key not in left_out}


def lacking(sweep: Sweep | None) -> list[str]:
    """What the trainings need and this machine has not: GPUs, models."""
    configs = [] if sweep is None else [trial.config for trial in sweep.trials]
    gpus = visible_gpus()
    needed = max((config.launch.processes for config in configs), default=0)
    said = []
    if needed > gpus:
        said.append(f"GPUs: the trainings run in up to {needed} processes, a GPU each, and this machine has {gpus}.")
    return [*said, *_models(configs)]


def _models(configs: Sequence[Config]) -> Iterator[str]:
    for name, revision in dict.fromkeys((config.model.name, config.model.revision) for config in configs):
        try:
            resolve_model(name, revision=revision)
        except UserError as error:
            yield from error.problems


def _with_recipes(claim: Claim, full: Full) -> Claim:
    """The claim with its recipes for arms, each side's own number and options kept."""
    if claim.contrast is None:
        measure = claim.measure.model_copy(update={"at": full.at or At()})
        return claim.model_copy(update={"arm": arm_name(full.of), "measure": measure})
    assert full.against is not None

    def side(before: Side, file: str) -> Side:
        return before.model_copy(update={"arm": arm_name(file), "at": full.at or At()})

    of, against = side(claim.contrast.of, full.of), side(claim.contrast.against, full.against)
    contrast: ClaimContrast = claim.contrast.model_copy(update={"of": of, "against": against})
    return claim.model_copy(update={"contrast": contrast})
