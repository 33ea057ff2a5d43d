"""The lab of Knights & Knaves."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rlvr_cli.core.section import FromList, Section
from rlvr_cli.core.yaml import yaml_text
from rlvr_cli.lab.form import Lab
from rlvr_cli.lab.recipe import Phase, Recipe, Share
from rlvr_cli.tasks.kk import compact
from rlvr_cli.tasks.kk.puzzles import KKPuzzle, Statement, generate_puzzle
from rlvr_cli.tasks.kk.task import KnightsAndKnaves


def _check_people(people: dict[int, float]) -> dict[int, float]:
    if not people or any(number not in range(2, 6) for number in people):
        raise ValueError(f"numbers of people must be 2 to 5; got {yaml_text(people)}")
    if any(share < 0 for share in people.values()) or sum(people.values()) <= 0:
        raise ValueError(f"shares must not be negative and not all zero; got {yaml_text(people)}")
    return people


class KKNoise(Section):
    """Chances of wrong steps in the traces of a phase; see `rlvr_cli.tasks.kk.compact.Noise`."""

    atom: Share = 0.0
    verdict: Share = 0.0
    implication: Share = 0.0
    stop: Share = 0.0


class KKPhase(Phase):
    """A phase with shares of the numbers of people."""

    people: Annotated[dict[int, float], AfterValidator(_check_people)]
    noise: KKNoise = KKNoise()
    # Left out at 0, so that recipes without it keep their fingerprint.
    no_think: Share = Field(
        0.0, description="share of traces that answer at once, with random roles", exclude_if=lambda share: share == 0
    )


_MOSTLY_FOUR = {2: 0.1, 3: 0.3, 4: 0.6}


class KKRecipe(Recipe):
    """A build of a base that reads Knights & Knaves."""

    compound: Share = 0.6
    phases: Annotated[tuple[KKPhase, ...], FromList] = (
        KKPhase(name="three", steps=300, lr=2e-3, batch=32, warmup=20, final_lr_ratio=1.0, people={3: 1.0}),
        KKPhase(name="mixed", steps=1200, lr=2e-3, batch=48, warmup=20, final_lr_ratio=0.05, people=_MOSTLY_FOUR),
        KKPhase(
            name="noisy",
            steps=100,
            lr=5e-4,
            batch=32,
            people={2: 0.2, 3: 0.4, 4: 0.4},
            noise=KKNoise(atom=0.03, verdict=0.06, implication=0.35, stop=0.42),
        ),
    )


class KKLab(Lab[KKPuzzle]):
    """Sizes are numbers of people."""

    name = "kk"
    recipe = KKRecipe

    def vocabulary(self) -> list[str]:
        return compact.vocabulary()

    def sizes(self, phase: KKPhase) -> Mapping[int, float]:
        return phase.people

    def pool(self, recipe: KKRecipe, size: int, count: int, rng: random.Random) -> list[KKPuzzle]:
        found: dict[tuple[Statement, ...], KKPuzzle] = {}
        for _ in range(count):
            puzzle = generate_puzzle(rng, people=size, compound=recipe.compound, split="train")
            found.setdefault(puzzle.statements, puzzle)
        return list(found.values())

    def content(self, problem: KKPuzzle) -> object:
        return problem.statements

    def prompt(self, problem: KKPuzzle) -> str:
        return compact.prompt(problem)

    def traces(self, problem: KKPuzzle, phase: KKPhase, rng: random.Random) -> Iterator[str]:
        noise = compact.Noise(**phase.noise.model_dump())
        at_once = phase.no_think > 0 and rng.random() < phase.no_think
        while True:
            yield compact.answer_at_once(problem, rng) if at_once else compact.trace(problem, rng, noise)

    def held_out(self, recipe: KKRecipe) -> KnightsAndKnaves:
        people = recipe.phases[-1].people
        whole = sum(people.values())
        shares: Any = {number: weight / whole for number, weight in people.items() if weight}
        return KnightsAndKnaves(people=shares, style="compact")
