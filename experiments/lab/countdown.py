"""The lab of Countdown with three numbers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from experiments.lab.form import Lab, Phase, Recipe, weights_of
from rlvr_cli.core.section import FromList
from rlvr_cli.tasks import countdown_compact as compact
from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.countdown_puzzles import LOWEST, CountdownPuzzle, split_for


class CountdownPhase(Phase):
    """A phase with shares of the rounds of the search in which a solution is found."""

    rounds: Annotated[dict[int, float], weights_of("rounds", 1, compact.ROUNDS)] = Field({1: 1.0, 2: 1.0, 3: 1.0})
    noise: compact.Noise = compact.Noise()


class CountdownRecipe(Recipe):
    """A build of a base that reads Countdown with three numbers."""

    largest: int = Field(20, ge=1, le=compact.LARGEST, description="numbers are 1 to this")
    targets: Annotated[tuple[int, int], FromList] = (10, 60)
    phases: Annotated[tuple[CountdownPhase, ...], FromList] = (
        CountdownPhase(name="first", steps=500, lr=2e-3, batch=48, final_lr_ratio=1.0),
        CountdownPhase(name="clean", steps=1500, lr=2e-3, batch=48, final_lr_ratio=0.03),
        CountdownPhase(
            name="noisy",
            steps=100,
            lr=5e-4,
            batch=32,
            noise=compact.Noise(guess=0.4, quit=0.15, leap=0.01, miss=0.05, slip=0.15, value=0.005),
        ),
    )


class CountdownLab(Lab[CountdownPuzzle]):
    """Sizes are the rounds of the search. In train, puzzles may differ by the order of their numbers alone."""

    name = "countdown"
    recipe = CountdownRecipe

    def vocabulary(self) -> list[str]:
        return compact.vocabulary()

    def sizes(self, phase: CountdownPhase) -> Mapping[int, float]:
        return phase.rounds

    def pool(self, recipe: CountdownRecipe, size: int, count: int, rng: random.Random) -> list[CountdownPuzzle]:
        found: dict[CountdownPuzzle, None] = {}
        drawn = 0
        while drawn < count:
            nums = tuple(rng.randint(LOWEST, recipe.largest) for _ in range(compact.NUMBERS))
            puzzle = CountdownPuzzle(nums, rng.randint(*recipe.targets))
            if compact.find_solving_round(puzzle) is None or split_for(puzzle) != "train":
                continue
            orders = (CountdownPuzzle(order, puzzle.target) for order in itertools.permutations(nums))
            fitting = [order for order in orders if compact.find_solving_round(order) == size]
            if fitting:
                drawn += 1
                found.setdefault(rng.choice(fitting))
        return list(found)

    def content(self, problem: CountdownPuzzle) -> object:
        return problem.nums, problem.target

    def prompt(self, problem: CountdownPuzzle) -> str:
        return compact.write_prompt(problem)

    def traces(self, problem: CountdownPuzzle, phase: CountdownPhase, rng: random.Random) -> Iterator[str]:
        while True:
            yield compact.write_trace(problem, rng, phase.noise)

    def held_out(self, recipe: CountdownRecipe) -> Countdown:
        return Countdown(
            numbers={compact.NUMBERS: 1.0}, largest=recipe.largest, targets=recipe.targets, style="compact"
        )
