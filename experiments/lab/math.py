"""The lab of mathematics: word problems of several steps."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from experiments.lab.form import Lab, Phase, Recipe, weights_of
from rlvr_cli.core.section import FromList
from rlvr_cli.tasks.data import hash_split
from rlvr_cli.tasks.math import STORIES, MathTask
from rlvr_cli.tasks.math_stories import (
    MAX_STEPS,
    OPENING,
    Noise,
    Story,
    compact_vocabulary,
    draw_story,
    to_row,
    write_compact_prompt,
    write_compact_trace,
)


class MathPhase(Phase):
    """A phase with shares of the numbers of steps to the answer."""

    lengths: Annotated[dict[int, float], weights_of("numbers of steps", 1, MAX_STEPS)]
    noise: Noise = Noise()


class MathRecipe(Recipe):
    """A build of a base that reads word problems."""

    puzzles: int = Field(80_000, gt=0, description="train-split problems that traces are written for, of all lengths")
    phases: Annotated[tuple[MathPhase, ...], FromList] = (
        MathPhase(
            name="short", steps=450, lr=2e-3, batch=48, final_lr_ratio=1.0, lengths={1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
        ),
        MathPhase(
            name="long",
            steps=1000,
            lr=2e-3,
            batch=32,
            final_lr_ratio=0.05,
            lengths={2: 0.1, 3: 0.2, 4: 0.3, 5: 0.1, 6: 0.1, 7: 0.1, 8: 0.1},
        ),
        MathPhase(
            name="noisy",
            steps=100,
            lr=5e-4,
            batch=32,
            lengths={2: 0.3, 3: 0.4, 4: 0.3},
            noise=Noise(sign=0.08, look=0.08, sum=0.01, stop=0.33),
        ),
    )


class MathLab(Lab[Story]):
    """Sizes are numbers of steps. Traces begin with `<think>`: a base reads prompts that end in it and that do not."""

    name = "math"
    recipe = MathRecipe

    def vocabulary(self) -> list[str]:
        return compact_vocabulary()

    def sizes(self, phase: MathPhase) -> Mapping[int, float]:
        return phase.lengths

    def pool(self, recipe: MathRecipe, size: int, count: int, rng: random.Random) -> list[Story]:
        drawn = (draw_story(rng, size) for _ in range(count))
        return list(dict.fromkeys(story for story in drawn if hash_split(story.structure) == "train"))

    def content(self, problem: Story) -> object:
        return to_row(problem)

    def prompt(self, problem: Story) -> str:
        return write_compact_prompt(problem, opened=False)

    def traces(self, problem: Story, phase: MathPhase, rng: random.Random) -> Iterator[str]:
        while True:
            yield f"{OPENING} {write_compact_trace(problem, rng, phase.noise)}"

    def held_out(self, recipe: MathRecipe) -> MathTask:
        shares: Any = self.shares(recipe.phases[-1])
        return MathTask(steps=shares, style="compact", data=STORIES, rule="paper")
