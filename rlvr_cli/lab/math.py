"""The lab of mathematics: word problems of several steps."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rlvr_cli.core.section import FromList, Section
from rlvr_cli.core.yaml import yaml_text
from rlvr_cli.lab.form import Lab
from rlvr_cli.lab.recipe import Phase, Recipe, Share
from rlvr_cli.tasks.data import split_of
from rlvr_cli.tasks.math import compact
from rlvr_cli.tasks.math.stories import MAX_STEPS, Story, draw_story, to_row
from rlvr_cli.tasks.math.task import STORIES, MathTask


def _check_steps(steps: dict[int, float]) -> dict[int, float]:
    if not steps or any(number not in range(1, MAX_STEPS + 1) for number in steps):
        raise ValueError(f"numbers of steps must be 1 to {MAX_STEPS}; got {yaml_text(steps)}")
    if any(share < 0 for share in steps.values()) or sum(steps.values()) <= 0:
        raise ValueError(f"shares must not be negative and not all zero; got {yaml_text(steps)}")
    return steps


class MathNoise(Section):
    """Chances of wrong steps in the traces of a phase; see `rlvr_cli.tasks.math.compact.Noise`."""

    sign: Share = 0.0
    look: Share = 0.0
    sum: Share = 0.0
    stop: Share = 0.0


class MathPhase(Phase):
    """A phase with shares of the numbers of steps to the answer."""

    lengths: Annotated[dict[int, float], AfterValidator(_check_steps)]
    noise: MathNoise = MathNoise()


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
            noise=MathNoise(sign=0.08, look=0.08, sum=0.01, stop=0.33),
        ),
    )


class MathLab(Lab[Story]):
    """Sizes are numbers of steps. Traces begin with `<think>`: a base reads prompts that end in it and that do not."""

    name = "math"
    recipe = MathRecipe

    def vocabulary(self) -> list[str]:
        return compact.vocabulary()

    def sizes(self, phase: MathPhase) -> Mapping[int, float]:
        return phase.lengths

    def pool(self, recipe: MathRecipe, size: int, count: int, rng: random.Random) -> list[Story]:
        drawn = (draw_story(rng, size) for _ in range(count))
        return list(dict.fromkeys(story for story in drawn if split_of(story.structure) == "train"))

    def content(self, problem: Story) -> object:
        return to_row(problem)

    def prompt(self, problem: Story) -> str:
        return compact.prompt(problem, opened=False)

    def traces(self, problem: Story, phase: MathPhase, rng: random.Random) -> Iterator[str]:
        noise = compact.Noise(**phase.noise.model_dump())
        while True:
            yield f"{compact.OPENING} {compact.trace(problem, rng, noise)}"

    def held_out(self, recipe: MathRecipe) -> MathTask:
        lengths = recipe.phases[-1].lengths
        whole = sum(lengths.values())
        shares: Any = {number: weight / whole for number, weight in lengths.items() if weight}
        return MathTask(steps=shares, style="compact", data=STORIES)
