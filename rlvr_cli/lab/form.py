"""What a lab is: the form in which a tiny model reads and writes a task's problems, and the recipe of its base."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from rlvr_cli.core.streams import stream_seed
from rlvr_cli.lab.recipe import Recipe
from rlvr_cli.tasks import Task

P = TypeVar("P")
"""A problem, as the task's own module has it."""


def stream(seed: int, name: str) -> random.Random:
    """The random stream `name` of a build; streams of different names are independent."""
    return random.Random(stream_seed(seed, "lab", name))


class Lab(ABC, Generic[P]):
    """A task for a tiny model. Problems come in sizes, such as the number of people; a phase mixes sizes by shares.

    Attributes:
        name: that of its task; the shipped base is in `base/<name>`, the settings for training it in the model's
            preset (`config/presets/models`).
        recipe: a subclass of `Recipe` whose defaults give the shipped base.
    """

    name: ClassVar[str]
    recipe: ClassVar[type[Recipe]]

    @abstractmethod
    def vocabulary(self) -> list[str]:
        """Every word of prompts and traces, in a fixed order; between words stands one space."""

    @abstractmethod
    def sizes(self, phase: Any) -> Mapping[int, float]:
        """Size -> weight, in a phase of the lab's recipe."""

    @abstractmethod
    def pool(self, recipe: Any, size: int, count: int, rng: random.Random) -> list[P]:
        """Up to ``count`` distinct problems of one size, all of the train split."""

    @abstractmethod
    def content(self, problem: P) -> object:
        """What the hash of the data reads of a problem, by `repr`."""

    @abstractmethod
    def prompt(self, problem: P) -> str:
        """What the model is given."""

    @abstractmethod
    def traces(self, problem: P, phase: Any, rng: random.Random) -> Iterator[str]:
        """Responses to imitate, with the phase's noise, for as long as one is asked for: a build takes the first that
        is not too long.
        """

    @abstractmethod
    def held_out(self, recipe: Any) -> Task:
        """The task on whose dev problems a base is measured."""

    def pools(self, recipe: Any, seed: int) -> dict[int, list[P]]:
        """Training problems by size, for every size that a phase uses: `recipe.puzzles` in all, less repeats."""
        found = {size for phase in recipe.phases for size, weight in self.sizes(phase).items() if weight > 0}
        count = recipe.puzzles // len(found)
        return {size: self.pool(recipe, size, count, stream(seed, f"puzzles/{size}")) for size in sorted(found)}

    def data_hash(self, pools: Mapping[int, list[P]]) -> str:
        """SHA-256 of all problems' content, in order."""
        digest = hashlib.sha256()
        for size in sorted(pools):
            for problem in pools[size]:
                digest.update(repr(self.content(problem)).encode())
        return digest.hexdigest()
