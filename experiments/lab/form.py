"""What a lab is: the form in which a tiny model reads and writes a task's problems, and the recipe of its base."""

from __future__ import annotations

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import AfterValidator, Field, model_validator

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.section import FromList, Probability, Section
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.core.yaml import YamlProblem, parse, read_text, yaml_text
from rlvr_cli.tasks import Task

P = TypeVar("P")
"""A problem, as the task's own module has it."""


def weights_of(sizes: str, lowest: int, highest: int) -> AfterValidator:
    """Refuses weights of no size, or of other ``sizes`` (what they are, for people) than ``lowest`` to ``highest``."""

    def check(weights: dict[int, float]) -> dict[int, float]:
        if not weights or not all(lowest <= size <= highest for size in weights):
            raise ValueError(f"{sizes} must be {lowest} to {highest}; got {yaml_text(weights)}")
        if any(weight < 0 for weight in weights.values()) or sum(weights.values()) <= 0:
            raise ValueError(f"shares must not be negative and not all zero; got {yaml_text(weights)}")
        return weights

    return AfterValidator(check)


class ModelSize(Section):
    """Qwen3 architecture with tied embeddings, float32."""

    hidden: int = Field(96, gt=0)
    layers: int = Field(4, gt=0)
    heads: int = Field(4, gt=0)
    feed_forward: int = Field(256, gt=0)
    init_std: float = Field(0.05, gt=0)

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelSize:
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden={self.hidden} must be a multiple of 2 x heads={2 * self.heads}")
        return self


class Phase(Section):
    """One stretch of supervised training; the learning rate warms up, then falls by a cosine to `final_lr_ratio`."""

    name: str
    steps: int = Field(gt=0)
    lr: float = Field(gt=0)
    batch: int = Field(64, gt=0)
    warmup: int = Field(20, ge=0)
    final_lr_ratio: Probability = 0.1


class Recipe(Section):
    """A whole build; what is particular to a lab is in its own recipe, whose defaults give the shipped base."""

    model: ModelSize = ModelSize()
    puzzles: int = Field(40_000, gt=0, description="distinct train-split puzzles that traces are written for")
    max_tokens: int = Field(160, gt=0, description="prompt and trace together; longer traces are drawn again")
    phases: Annotated[tuple[Phase, ...], FromList] = ()

    def fingerprint(self) -> str:
        """SHA-256 of the recipe as canonical JSON."""
        return text_digest(json.dumps(self.model_dump(mode="json"), sort_keys=True))


def stream(seed: int, name: str) -> random.Random:
    """The random stream `name` of a build; streams of different names are independent."""
    return random.Random(stream_seed(seed, "lab", name))


class Lab(ABC, Generic[P]):
    """A task for a tiny model. Problems come in sizes, such as the number of people; a phase mixes sizes by shares.

    Attributes:
        name: that of its task; the shipped base is in `rlvr_cli/models/lab`, the settings for training it in the
            model's preset (`config/presets/models`).
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

    def read_recipe(self, path: Path) -> Recipe:
        """The recipe in a YAML file; keys left out keep their defaults.

        Raises UserError: the file is missing, is not YAML, or has unknown keys or values out of range.
        """
        try:
            document = parse(read_text(path))
        except YamlProblem as problem:
            raise UserError(f"{problem.location(path)}  {problem.message}") from None
        recipe, faults = read_section(self.recipe, {} if document.data is None else document.data)
        if recipe is None:
            raise UserError([f"{document.location(path, fault.value_path)}  {fault}" for fault in faults])
        return recipe

    def shares(self, phase: Any) -> dict[int, float]:
        """Size -> share of the problems of a phase, of every size that it has."""
        weights = self.sizes(phase)
        whole = sum(weights.values())
        return {size: weight / whole for size, weight in weights.items() if weight}

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
