"""Reads the ledger's data: claims, arms and bases, every problem of all files at once, each with its line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rlvr_cli.analyses.base import analyses
from rlvr_cli.analyses.request import options_of
from rlvr_cli.core.errors import UserError, layout
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.section import Section
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.yaml import YamlDocument, YamlProblem, parse, read_text, yaml_text
from rlvr_cli.ledger import exact
from rlvr_cli.ledger.schema import LAB, PAPERS, Claim, ClaimArm
from rlvr_cli.sweeps.axes import full_key, key_problem

DATA = Path(__file__).parent / "data"
NOT_OF_AN_ARM = {
    "run.name": "trainings are named by their arms",
    "run.dir": "the ledger keeps its trainings together",
    "run.seed": "the seed is the ledger's",
    "model.name": "give the arm a `base`",
}
ClaimProblem = tuple[str, str]
S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class ClaimSet:
    """Everything the ledger knows.

    Attributes:
        arm_lines: where each arm stands in arms.yaml.
        recipes: the recipe of each base but `lab`.
    """

    folder: Path
    claims: dict[str, Claim]
    arms: dict[str, ClaimArm]
    arm_lines: dict[str, int]
    recipes: dict[str, Path]

    @property
    def arms_path(self) -> Path:
        return self.folder / "arms.yaml"

    def choose(self, names: Sequence[str]) -> list[Claim]:
        """The claims of ``names``: claims, or papers for all of theirs. Raises UserError for names that are neither."""
        chosen: dict[str, Claim] = {}
        problems = []
        for name in names:
            found = [claim for claim in self.claims.values() if name in (claim.id, claim.paper)]
            if not found:
                known = [*self.claims, *PAPERS]
                hint = did_you_mean(name, known) or did_you_mean(name, [one.partition("/")[2] for one in self.claims])
                problems.append(f"{name}: no such claim or paper.{hint} `rlvr reproduce` lists the claims.")
            chosen |= {claim.id: claim for claim in found}
        if problems:
            raise UserError(problems)
        return [claim for claim in self.claims.values() if claim.id in chosen]


def read_claims(folder: Path = DATA) -> ClaimSet:
    """The ledger's data in ``folder``. Raises UserError with every problem of all files."""
    problems: list[ClaimProblem] = []
    recipes = {path.stem: path for path in sorted((folder / "bases").glob("*.yaml"))}
    arms, lines = _arms(folder / "arms.yaml", recipes, problems)
    claims: dict[str, Claim] = {}
    for paper in PAPERS:
        path = folder / "claims" / f"{paper}.yaml"
        if path.exists():
            for claim, place in _claims(path, problems):
                if claim.id in claims:
                    problems.append((place, f"{claim.id}: another claim has this id"))
                problems += [(place, f"{claim.id}: {said}") for said in _claim_problems(claim, paper, arms)]
                claims[claim.id] = claim
    for path in sorted((folder / "claims").glob("*.yaml")):
        if path.stem not in PAPERS:
            hint = did_you_mean(path.stem, PAPERS)
            problems.append((str(path), f"is called after no paper.{hint} Papers: {', '.join(PAPERS)}"))
    if problems:
        raise UserError(layout(problems))
    return ClaimSet(folder, claims, arms, lines, recipes)


def _document(path: Path, problems: list[ClaimProblem]) -> YamlDocument | None:
    try:
        return parse(read_text(path))
    except YamlProblem as problem:
        problems.append((problem.at(path), problem.message))
        return None


def _arms(
    path: Path, recipes: dict[str, Path], problems: list[ClaimProblem]
) -> tuple[dict[str, ClaimArm], dict[str, int]]:
    document = _document(path, problems)
    if document is None:
        return {}, {}
    if not isinstance(document.data, dict):
        problems.append((str(path), f"must be a mapping from arms to base and set; got {yaml_text(document.data)}"))
        return {}, {}
    found: dict[str, ClaimArm] = {}
    lines: dict[str, int] = {}
    for name, data in document.data.items():
        arm = _section(ClaimArm, data, path, document, (name,), problems)
        lines[name] = document.lines[(name,)]
        if arm is None:
            continue
        found[name] = arm
        if arm.base != LAB and arm.base not in recipes:
            known = [LAB, *recipes]
            said = (
                f"{name}: base {arm.base}: no such base.{did_you_mean(arm.base, known)} There are: {', '.join(known)}"
            )
            problems.append((document.at(path, (name, "base")), said))
        for key in arm.set:
            refused = NOT_OF_AN_ARM.get(full_key(key))
            wrong = f"{key}: {refused}" if refused else key_problem(key)
            if wrong:
                problems.append((document.at(path, (name, "set", key)), f"{name}: {wrong}"))
    return found, lines


def _claims(path: Path, problems: list[ClaimProblem]) -> Iterator[tuple[Claim, str]]:
    document = _document(path, problems)
    if document is None:
        return
    if not isinstance(document.data, list):
        problems.append((str(path), f"must be a list of claims; got {yaml_text(document.data)}"))
        return
    for row, data in enumerate(document.data):
        claim = _section(Claim, data, path, document, (row,), problems)
        if claim is not None:
            yield claim, document.at(path, (row,))


def _section(
    model: type[S], data: Any, path: Path, document: YamlDocument, where: tuple[Any, ...], problems: list[ClaimProblem]
) -> S | None:
    section, faults = read_section(model, data)
    name = data.get("id", where[-1]) if isinstance(data, dict) else where[-1]
    problems += [(document.at(path, (*where, *fault.value_path)), f"{name}: {fault}") for fault in faults]
    return section


def _claim_problems(claim: Claim, paper: str, arms: dict[str, ClaimArm]) -> Iterator[str]:
    measure, rule = claim.measure, claim.rule
    if claim.paper != paper:
        yield f"id: must begin with {paper}/, after its file"
    if sum(value is not None for value in (rule.above, rule.below, rule.within)) != 1:
        yield "rule: must have exactly one of above, below and within"
    if rule.within is not None and rule.within[0] > rule.within[1]:
        yield f"rule.within: must rise; got {list(rule.within)}"
    if (measure.analysis is None) == (measure.exact is None):
        yield "measure: must have either analysis or exact"
        return
    if measure.exact is not None:
        yield from (f"measure.{said}" for said in exact.statement_problems(measure.exact, measure.options))
        if claim.arm is not None or claim.contrast is not None:
            yield "an exact statement needs no run: leave out arm and contrast"
        if measure.number is not None or measure.absent is not None or measure.at.model_fields_set:
            yield "measure: number, at and absent have no meaning for an exact statement"
        return
    if measure.number is None:
        yield f"measure.number: is missing: a key of the summary of `rlvr analyze {measure.analysis}`"
    if (claim.arm is None) == (claim.contrast is None):
        yield "must have either arm or contrast"
    said = set[str]()
    for call in claim.calls():
        if call.arm not in arms:
            said.add(f"{call.arm}: no such arm.{did_you_mean(call.arm, arms)}")
        try:
            options_of(call.analysis, call.options)
        except UserError as error:
            said.update(f"measure: {one}" for one in error.problems)
        kind = analyses().get(call.analysis)
        if kind is not None and call.at.step is not None and not kind.policy:
            said.add(f"at.step: {call.analysis} looks at rollouts alone")
    yield from sorted(said)
