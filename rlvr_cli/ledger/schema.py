"""What a claim and an arm are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from rlvr_cli.core.section import CountOrZero, FromList, Section, Text

PAPERS = {"ar_lopti": "AR-Lopti", "acpo": "ACPO", "dgpo": "DGPO", "gtpo": "GTPO", "landscape": "Landscape of GRPO"}
LAB = "lab"
WORD = r"[a-z0-9]+(?:-[a-z0-9]+)*"


def _one_line(value: Any) -> Any:
    """Text that is folded over several lines of YAML."""
    return " ".join(value.split()) if isinstance(value, str) else value


Words = Annotated[Text, BeforeValidator(_one_line)]
ClaimId = Annotated[str, StringConstraints(pattern=rf"^[a-z_]+/{WORD}$", max_length=80)]
ArmName = Annotated[str, StringConstraints(pattern=rf"^{WORD}$", max_length=100)]
A_SIDE = "an arm's name, or a mapping of arm, number, options and at"


class ClaimArm(Section):
    """A training that claims look at: a base model and what is overridden."""

    base: Text = Field(LAB, description="`lab`, or the name of a recipe in `bases`.")
    set: dict[str, Any] = Field({}, title="a mapping from keys to values, as {optimizer.lr: 1e-3}")
    about: Words | None = Field(None, description="One line for people.")


class At(Section):
    """Which rollout and which checkpoint an analysis looks at, as --rollout and --step."""

    rollout: CountOrZero | None = None
    step: CountOrZero | None = None


class Measure(Section):
    """A number of one seed: out of an analysis, or of a function that needs no run."""

    analysis: Text | None = Field(None, description="A name of `rlvr analyze`.")
    number: Text | None = Field(None, description="Of the analysis: a key of its summary, or a dotted path.")
    exact: Text | None = Field(None, description="A name of `ledger.exact`.")
    options: dict[str, Any] = Field({}, title="a mapping from keys to values")
    at: At = Field(At(), title="a mapping of rollout and step")
    absent: float | None = Field(None, description="What stands for null, as 0 where nothing was clipped.")
    unit: Words | None = None


class Side(Section):
    """One arm of a contrast; what is not given is the measure's."""

    arm: ArmName
    number: Text | None = None
    options: dict[str, Any] | None = Field(None, title="a mapping from keys to values")
    at: At | None = Field(None, title="a mapping of rollout and step")


def _side(value: Any) -> Any:
    return {"arm": value} if isinstance(value, str) else value


class ClaimContrast(Section):
    """Two arms, seed by seed."""

    of: Annotated[Side, BeforeValidator(_side)] = Field(title=A_SIDE)
    against: Annotated[Side, BeforeValidator(_side)] = Field(title=A_SIDE)
    by: Literal["difference", "ratio", "log_ratio"] = Field("difference", alias="as")


class Rule(Section):
    """When a claim holds: its interval lies beyond a threshold, or inside two."""

    above: float | None = None
    below: float | None = None
    within: Annotated[tuple[float, float], FromList] | None = None

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Where the claim holds: above the first, below the second."""
        return self.within if self.within is not None else (self.above, self.below)

    def __str__(self) -> str:
        if self.within is not None:
            low, high = self.within
            return f"is {low:g}" if low == high else f"within {low:g} and {high:g}"
        return f"above {self.above:g}" if self.above is not None else f"below {self.below:g}"


class Full(Section):
    """The recipes of the claim at the paper's scale, below configs/papers: `FILE:ROW`, a row of a table."""

    of: Text
    against: Text | None = None
    at: At | None = Field(None, title="a mapping of rollout and step")


@dataclass(frozen=True)
class Call:
    """What is computed of one run of ``arm`` for a claim: one number of one analysis."""

    arm: str
    analysis: str
    number: str
    options: Mapping[str, Any]
    at: At


class Claim(Section):
    """A statement of a paper, and how it is put to the test."""

    id: ClaimId
    place: Words = Field(description="Figure, table or section of the paper.")
    statement: Words
    paper_value: Words = Field(description="What the paper reports.")
    measure: Measure = Field(title="a mapping of analysis and number, or of exact")
    arm: ArmName | None = None
    contrast: ClaimContrast | None = Field(None, title="a mapping of of, against and as")
    rule: Rule = Field(title="a mapping with one of above, below and within")
    seeds: Annotated[int, Field(ge=2, le=1000)] = 5
    full: Full | None = Field(None, title="a mapping of of, against and at")
    note: Words | None = Field(None, description="What weakens it.")
    cannot_fail: Words | None = Field(
        None,
        description="Why no training could decide against it: it follows from a formula or a definition, or holds of "
        "any method. Left out of the counts.",
    )

    @property
    def paper(self) -> str:
        return self.id.partition("/")[0]

    def seeds_from(self, first: int) -> list[int]:
        """The seeds of the set that begins with ``first``."""
        return list(range(first, first + self.seeds))

    @property
    def arms(self) -> list[str]:
        """The arms that it looks at, each once."""
        return list(dict.fromkeys(call.arm for call in self.calls()))

    def calls(self) -> Iterator[Call]:
        """What is computed of one seed: one call, two of a contrast, none of an exact statement."""
        measure = self.measure
        if measure.analysis is None or measure.number is None:
            return
        if self.contrast is not None:
            sides = [self.contrast.of, self.contrast.against]
        else:
            sides = [Side(arm=self.arm)] if self.arm is not None else []
        for side in sides:
            options = measure.options if side.options is None else side.options
            yield Call(side.arm, measure.analysis, side.number or measure.number, options, side.at or measure.at)
