"""The lab of Knights & Knaves."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from experiments.lab.form import Lab, Phase, Recipe, weights_of
from rlvr_cli.core.section import FromList, Probability
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.kk_puzzles import KKPuzzle, Statement, generate_puzzle


class KKPhase(Phase):
    """A phase with shares of the numbers of people."""

    people: Annotated[dict[int, float], weights_of("numbers of people", 2, 5)]
    noise: compact.Noise = compact.Noise()
    # Left out at 0, so that recipes without it keep their fingerprint.
    no_think: Probability = Field(
        0.0, description="share of traces that answer at once, with random roles", exclude_if=lambda share: share == 0
    )


_MOSTLY_FOUR = {2: 0.1, 3: 0.3, 4: 0.6}


class KKRecipe(Recipe):
    """A build of a base that reads Knights & Knaves."""

    compound: Probability = 0.6
    phases: Annotated[tuple[KKPhase, ...], FromList] = (
        KKPhase(name="three", steps=300, lr=2e-3, batch=32, warmup=20, final_lr_ratio=1.0, people={3: 1.0}),
        KKPhase(name="mixed", steps=1200, lr=2e-3, batch=48, warmup=20, final_lr_ratio=0.05, people=_MOSTLY_FOUR),
        KKPhase(
            name="noisy",
            steps=100,
            lr=5e-4,
            batch=32,
            people={2: 0.2, 3: 0.4, 4: 0.4},
            noise=compact.Noise(atom=0.03, verdict=0.06, implication=0.35, stop=0.42),
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
        return compact.write_prompt(problem)

    def traces(self, problem: KKPuzzle, phase: KKPhase, rng: random.Random) -> Iterator[str]:
        at_once = phase.no_think > 0 and rng.random() < phase.no_think
        while True:
            yield compact.write_guess(problem, rng) if at_once else compact.write_trace(problem, rng, phase.noise)

    def held_out(self, recipe: KKRecipe) -> KnightsAndKnaves:
        shares: Any = self.shares(recipe.phases[-1])
        return KnightsAndKnaves(people=shares, style="compact")
