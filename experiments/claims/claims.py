"""The claims as data: the statement, the trainings, the number taken of them, the rule, the results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import write_json
from rlvr_cli.core.hashes import digest
from rlvr_cli.core.text import did_you_mean

FOLDER = Path(__file__).parent
PAPERS = {"ar_lopti": "AR-Lopti", "acpo": "ACPO", "dgpo": "DGPO", "gtpo": "GTPO", "landscape": "Landscape of GRPO"}
ClaimVerdict = Literal["holds", "does not hold", "undecided", "failed"]
DECIDED: tuple[ClaimVerdict, ...] = ("holds", "does not hold")
Line = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]


class Data(BaseModel):
    """A mapping of a YAML file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Measure(Data):
    """A number of one seed: in the summary of an analysis, or of a function of `judge.EXACT` that needs no training."""

    analysis: str | None = None
    number: str | None = None
    exact: str | None = None
    options: dict[str, str] = {}
    unit: Line | None = None


class Side(Data):
    """One arm of a contrast, with a number of its own where it is not the measure's."""

    arm: str
    number: str | None = None


def _side(value: Any) -> Any:
    return {"arm": value} if isinstance(value, str) else value


class Contrast(Data):
    """Two arms, seed by seed."""

    of: Annotated[Side, BeforeValidator(_side)]
    against: Annotated[Side, BeforeValidator(_side)]
    by: Literal["difference", "ratio", "log_ratio"] = Field("difference", alias="as")


class Rule(Data):
    """When a claim holds: its interval lies beyond a threshold, or inside two."""

    above: float | None = None
    below: float | None = None
    within: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _single(self) -> Rule:
        if sum(value is not None for value in (self.above, self.below, self.within)) != 1:
            raise ValueError("must have exactly one of above, below and within")
        return self

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The threshold above which, and the one below which, the claim holds."""
        return self.within if self.within is not None else (self.above, self.below)

    def __str__(self) -> str:
        if self.within is not None:
            low, high = self.within
            return f"is {low:g}" if low == high else f"within {low:g} and {high:g}"
        return f"above {self.above:g}" if self.above is not None else f"below {self.below:g}"


class Recipes(Data):
    """The recipes of the claim at the paper's scale, below configs/papers: `FILE:ROW`, a row of a table."""

    of: str
    against: str | None = None


class Claim(Data):
    """A statement of a paper, and how it is put to the test.

    Attributes:
        place: figure, table or section of the paper.
        note: what weakens it.
        cannot_fail: why no training could decide against it; such a claim is left out of the counts.
    """

    id: str
    place: Line
    statement: Line
    paper_value: Line
    measure: Measure
    arm: str | None = None
    contrast: Contrast | None = None
    rule: Rule
    seeds: int = Field(5, ge=2)
    full: Recipes | None = None
    note: Line | None = None
    cannot_fail: Line | None = None

    @model_validator(mode="after")
    def _complete(self) -> Claim:
        sources = [self.arm, self.contrast, self.measure.exact]
        if sum(source is not None for source in sources) != 1:
            raise ValueError("must have exactly one of arm, contrast and measure.exact")
        if self.measure.exact is None and not (self.measure.analysis and self.measure.number):
            raise ValueError("measure: must have analysis and number")
        return self

    @property
    def paper(self) -> str:
        return self.id.partition("/")[0]

    def sides(self) -> Iterator[tuple[str, str]]:
        """Yield arm and number of what is measured of one seed: two of a contrast, none of an exact statement."""
        if self.measure.number is None:
            return
        contrast = self.contrast
        sides = [Side(arm=str(self.arm))] if contrast is None else [contrast.of, contrast.against]
        for side in sides:
            yield side.arm, side.number or self.measure.number


@dataclass(frozen=True)
class ClaimSet:
    """The claims by id, the settings of their arms by name, and the recipe of the arms' base models."""

    claims: Mapping[str, Claim]
    arms: Mapping[str, Mapping[str, Any]]
    recipe: str

    def choose(self, names: Sequence[str]) -> list[Claim]:
        """Return the claims of ``names``, claims or papers; all for none. Raises UserError for other names."""
        known = [*self.claims, *PAPERS]
        unknown = [f"{name}: no such claim or paper.{did_you_mean(name, known)}" for name in names if name not in known]
        if unknown:
            raise UserError(unknown)
        return [claim for claim in self.claims.values() if not names or claim.id in names or claim.paper in names]

    def fingerprint(self, claim: Claim) -> str:
        """Return a hash of all that decides the outcome of ``claim``: not its words."""
        words = {"statement", "paper_value", "place", "note", "full", "cannot_fail"}
        content = claim.model_dump(mode="json", by_alias=True, exclude=words, exclude_defaults=True)
        arms = {arm: self.arms[arm] for arm, _ in claim.sides()}
        return digest({"claim": content, "arms": arms, "recipe": self.recipe if arms else None})[:16]


def read_claims(folder: Path = FOLDER) -> ClaimSet:
    """Return the claims in ``folder``. Raises UserError with every problem of all files."""
    sweep = yaml.safe_load((folder / "arms.yaml").read_text(encoding="utf-8"))
    arms = {row["name"]: {**sweep["set"], **{key: row[key] for key in row if key != "name"}} for row in sweep["list"]}
    claims, problems = dict[str, Claim](), list[str]()
    for paper in PAPERS:
        path = folder / f"{paper}.yaml"
        for row in yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else ():
            try:
                claim = Claim.model_validate(row)
            except ValidationError as error:
                problems += [f"{path}: {row.get('id')}: {fault['loc']}: {fault['msg']}" for fault in error.errors()]
                continue
            if claim.id in claims or claim.paper != paper:
                problems.append(f"{path}: {claim.id}: must begin with {paper}/, and be no other claim's id")
            unknown = [arm for arm, _ in claim.sides() if arm not in arms]
            problems += [f"{path}: {claim.id}: {arm}: unknown arm.{did_you_mean(arm, arms)}" for arm in unknown]
            claims[claim.id] = claim
    if problems:
        raise UserError(problems)
    return ClaimSet(claims, arms, (folder / "strategy-mix.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class ClaimResult:
    """The outcome of a claim with one set of seeds.

    Attributes:
        fingerprint: that of the claim when it was judged; another one means that the claim was changed since.
        seeds: those of ``values``, in their order; none for an exact statement.
        sides: of a contrast, the numbers of both arms, seed by seed.
        needed: seeds that would decide an undecided claim.
        reason: why it failed, or why it is undecided where something other than the interval says so.
    """

    claim: str
    fingerprint: str
    verdict: ClaimVerdict
    seeds: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    sides: list[list[float]] = field(default_factory=list)
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    needed: int | None = None
    reason: str | None = None

    @property
    def exact(self) -> bool:
        """Whether it is a number that follows from a definition."""
        return bool(self.values) and not self.seeds


@dataclass(frozen=True)
class Results:
    """All outcomes of the set of seeds that begins with ``seed_from``.

    Attributes:
        seconds: of wall time, over all sessions.
        machine: processor and cores; versions of what decides numbers.
    """

    seed_from: int
    outcomes: dict[str, ClaimResult] = field(default_factory=dict)
    seconds: float = 0.0
    sessions: int = 0
    workers: int = 1
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        return f"seeds-{self.seed_from}.json"

    @property
    def decided(self) -> int:
        """How many claims have a verdict either way."""
        return sum(result.verdict in DECIDED for result in self.outcomes.values())

    @property
    def made_with(self) -> str:
        """`rlvr 0.1.0, torch 2.13.0+cpu`."""
        packages = {name: version for name, version in self.machine.items() if name not in ("processor", "cores")}
        return ", ".join(f"{name} {version}" for name, version in packages.items())

    def current(self, claim: Claim, claim_set: ClaimSet) -> ClaimResult | None:
        """Return the outcome of ``claim``; None where there is none, or the claim was changed since."""
        result = self.outcomes.get(claim.id)
        return result if result is not None and result.fingerprint == claim_set.fingerprint(claim) else None

    def write(self, folder: Path) -> None:
        """Replace the file in ``folder``."""
        write_json(folder / self.file, asdict(self))


def read_results(path: Path) -> Results:
    """Return the results in the file ``path``. Raises RunError for a file that is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        outcomes = {name: ClaimResult(**outcome) for name, outcome in content["outcomes"].items()}
        return Results(**{**content, "outcomes": outcomes})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: cannot be read as results of claims ({error}).") from error
