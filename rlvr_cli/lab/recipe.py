"""What a lab base is built from: model size, data and training phases; read from YAML to make other bases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from rlvr_cli.core.errors import UserError, layout
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.section import FromList, Section
from rlvr_cli.core.yaml import YamlProblem, parse, read_text, yaml_text

Share = Annotated[float, Field(ge=0, le=1)]


def _check_people(people: dict[int, float]) -> dict[int, float]:
    if not people or any(number not in range(2, 6) for number in people):
        raise ValueError(f"numbers of people must be 2 to 5; got {yaml_text(people)}")
    if any(share < 0 for share in people.values()) or sum(people.values()) <= 0:
        raise ValueError(f"shares must not be negative and not all zero; got {yaml_text(people)}")
    return people


People = Annotated[dict[int, float], AfterValidator(_check_people)]


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


class TraceNoise(Section):
    """Chances of wrong steps in the traces of a phase; see `rlvr_cli.tasks.kk.compact.Noise`."""

    atom: Share = 0.0
    verdict: Share = 0.0
    implication: Share = 0.0
    stop: Share = 0.0


class Phase(Section):
    """One stretch of supervised training; the learning rate warms up, then falls by a cosine to `final_lr_ratio`."""

    name: str
    steps: int = Field(gt=0)
    lr: float = Field(gt=0)
    batch: int = Field(64, gt=0)
    warmup: int = Field(20, ge=0)
    final_lr_ratio: Share = 0.1
    people: People
    noise: TraceNoise = TraceNoise()
    # Left out at 0, so that recipes without it keep their fingerprint.
    no_think: Share = Field(
        0.0, description="share of traces that answer at once, with random roles", exclude_if=lambda share: share == 0
    )


_MOSTLY_FOUR = {2: 0.1, 3: 0.3, 4: 0.6}


class Recipe(Section):
    """A whole build. The defaults give the base that ships with the project."""

    model: ModelSize = ModelSize()
    puzzles: int = Field(40_000, gt=0, description="distinct train-split puzzles that traces are written for")
    compound: Share = 0.6
    max_tokens: int = Field(160, gt=0, description="prompt and trace together; longer traces are drawn again")
    phases: Annotated[tuple[Phase, ...], FromList] = (
        Phase(name="three", steps=300, lr=2e-3, batch=32, warmup=20, final_lr_ratio=1.0, people={3: 1.0}),
        Phase(name="mixed", steps=1200, lr=2e-3, batch=48, warmup=20, final_lr_ratio=0.05, people=_MOSTLY_FOUR),
        Phase(
            name="noisy",
            steps=100,
            lr=5e-4,
            batch=32,
            people={2: 0.2, 3: 0.4, 4: 0.4},
            noise=TraceNoise(atom=0.03, verdict=0.06, implication=0.35, stop=0.42),
        ),
    )

    def fingerprint(self) -> str:
        """SHA-256 of the recipe as canonical JSON."""
        return text_digest(json.dumps(self.model_dump(mode="json"), sort_keys=True))


def load_recipe(path: Path) -> Recipe:
    """The recipe in a YAML file; keys left out keep their defaults.

    Raises:
        UserError: the file is missing, is not YAML, or has unknown keys or values out of range.
    """
    try:
        document = parse(read_text(path))
    except YamlProblem as problem:
        raise UserError(f"{problem.at(path)}  {problem.message}") from None
    recipe, faults = read_section(Recipe, {} if document.data is None else document.data)
    if recipe is None:
        raise UserError(layout([(document.at(path, fault.place), str(fault)) for fault in faults]))
    return recipe
