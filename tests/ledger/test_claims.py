"""The ledger's data: what a claim is, and every mistake in it with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.ledger import exact
from rlvr_cli.ledger.claim_results import asked, read_results
from rlvr_cli.ledger.claims import ClaimSet, read_claims
from rlvr_cli.ledger.schema import PAPERS
from rlvr_cli.ledger.trainings import ArmSeed, Folders, base_folders, make_sweep, needed_trainings
from tests.ledger.files import ARMS, CONTRAST, EXACT, LENGTH, WORDS, claim_set, problems


def test_a_side_takes_from_the_measure_what_it_does_not_say(tmp_path: Path) -> None:
    sides = {
        "of": {"arm": "tiny-grpo", "number": "length_start", "at": {"rollout": 1}},
        "against": {"arm": "tiny-grpo", "options": {"samples": 2}},
    }
    claim = {**LENGTH, "contrast": sides}
    del claim["arm"]
    (first, second) = claim_set(tmp_path, [claim]).claims["landscape/length"].calls()
    assert (first.number, first.at.rollout, dict(first.options)) == ("length_start", 1, {})
    assert (second.number, second.at.rollout, dict(second.options)) == ("length_end", None, {"samples": 2})


def test_every_problem_at_once(tmp_path: Path) -> None:
    claims = [
        {**LENGTH, "measure": {"analysis": "landscap", "number": "x"}, "rule": {"above": 0, "below": 1}},
        {**LENGTH, "id": "landscape/b", "arm": "tiny-grpp", "sedes": 3},
        {**LENGTH, "id": "landscape/c", "measure": {"analysis": "landscape", "number": "x", "options": {"sampels": 1}}},
        {
            **LENGTH,
            "id": "landscape/d",
            "arm": "tiny-grpp",
            "measure": {"analysis": "landscape", "number": "x", "at": {"step": 3}},
        },
        {
            **EXACT,
            "id": "landscape/e",
            "arm": "tiny-grpo",
            "measure": {"exact": "updates_ratio", "options": {"of": "x"}},
        },
        {**LENGTH, "id": "landscape/f", "rule": {"within": [2, 1]}, "contrast": {"of": "tiny-pl"}},
        {"id": "landscape/g", **WORDS},
        {**LENGTH, "rule": {"above": "high"}},
        LENGTH,
        LENGTH,
    ]
    arms = {**ARMS, "odd": {"base": "labb", "set": {"rollout.promts": 1, "run.seed": 3, "model": "lab"}}}
    found = "\n".join(problems(tmp_path, claims, arms))
    for said in (
        "landscape/length: measure: landscap: no such analysis. Did you mean `landscape`?",
        "rule: must have exactly one of above, below and within",
        "landscape/b: sedes: unknown key. Did you mean `seeds`?",
        "measure: landscape.sampels: unknown key. Did you mean `samples`?",
        "landscape/d: tiny-grpp: no such arm. Did you mean `tiny-grpo`?",
        "landscape/d: at.step: landscape looks at rollouts alone",
        "landscape/e: measure.options.against: is missing",
        "landscape/e: an exact statement needs no run: leave out arm and contrast",
        "landscape/f: contrast.against: is missing; it must be an arm's name, or a mapping",
        "landscape/g: measure: is missing; it must be a mapping of analysis and number, or of exact",
        'landscape/length: rule.above: must be null, or a number; got "high"',
        "landscape/length: another claim has this id",
        "odd: base labb: no such base. Did you mean `lab`?",
        "odd: rollout.promts: no such key. Did you mean `rollout.prompts`?",
        "odd: run.seed: the seed is the ledger's",
        "odd: model: give the arm a `base`",
    ):
        assert said in found, f"{said}\n{found}"
    assert all(line.startswith(("arms.yaml:", "claims/landscape.yaml:")) for line in found.splitlines())


def test_names_that_are_none(tmp_path: Path) -> None:
    read = claim_set(tmp_path, [LENGTH, EXACT])
    with pytest.raises(UserError, match="Did you mean `landscape/length`"):
        read.choose(["landscape/lenght"])
    assert [claim.id for claim in read.choose(["landscape", "ar_lopti/cost"])] == ["ar_lopti/cost", "landscape/length"]


def test_what_claims_share_is_trained_once(tmp_path: Path) -> None:
    read = claim_set(tmp_path, [LENGTH, {**CONTRAST, "seeds": 3}])
    wanted = needed_trainings(list(read.claims.values()), read, 10)
    assert [need.name for need in wanted] == [
        f"{arm}-s{seed}" for seed in (10, 11, 12) for arm in ("tiny-grpo", "tiny-pl")
    ]
    sweep = make_sweep(wanted, read, Folders(tmp_path / "runs"), {}, ("rlvr", "reproduce", "--all"))
    assert [trial.name for trial in sweep.trials] == [need.name for need in wanted]
    assert sweep.folder == tmp_path / "runs" / "ledger-lab"


def test_an_arm_that_is_no_configuration_is_named_by_its_line(tmp_path: Path) -> None:
    read = claim_set(tmp_path, [LENGTH], {"other": ARMS["tiny-pl"], "tiny-grpo": {"set": {"rollout.prompts": 0}}})
    with pytest.raises(UserError, match=rf"arms.yaml:{read.arm_lines['tiny-grpo']} .*rollout.prompts"):
        make_sweep([ArmSeed("tiny-grpo", 0)], read, Folders(tmp_path), {}, ())


def test_what_changes_a_claim(tmp_path: Path) -> None:
    """Its numbers do, and the arms that it looks at; words and other arms do not."""

    def hashed(read: ClaimSet) -> str:
        return asked(read.claims["landscape/length"], read)

    first = hashed(claim_set(tmp_path, [LENGTH]))
    assert hashed(claim_set(tmp_path, [{**LENGTH, "statement": "Other words.", "note": "More."}])) == first
    assert hashed(claim_set(tmp_path, [LENGTH], {**ARMS, "tiny-pl": {"set": {"method": "nl"}}})) == first
    assert hashed(claim_set(tmp_path, [{**LENGTH, "rule": {"above": 0.1}}])) != first
    assert hashed(claim_set(tmp_path, [{**LENGTH, "seeds": 3}])) != first
    assert hashed(claim_set(tmp_path, [LENGTH], {**ARMS, "tiny-grpo": {"set": {"method": "nl"}}})) != first


def test_the_shipped_ledger(tmp_path: Path) -> None:
    """All claims are read, over all five papers, and every training that they look at is a valid configuration."""
    read = read_claims()
    claims = list(read.claims.values())
    assert {claim.paper for claim in claims} == set(PAPERS)
    wanted = needed_trainings(claims, read, 0)
    folders = Folders(tmp_path)
    bases = base_folders({need.base(read) for need in wanted}, read, folders)
    assert len(set(bases.values())) == len({need.seed for need in wanted}), "each seed begins with another base"
    sweep = make_sweep(wanted, read, folders, bases, ("rlvr", "reproduce", "--all"))
    assert len(sweep.trials) == len(wanted)
    assert {need.arm for need in wanted} == set(read.arms), "an arm that no claim looks at"


def test_exact_statements() -> None:
    """CISPO's constant weight on grad log pi is one over the probability on grad pi; DGPO's are n and -1 / m."""
    assert exact.compute_exact("updates_ratio", {"of": "lopti", "against": "grpo"}) == 2.0
    assert exact.compute_exact("weight_exponent", {"method": "cispo", "region": "LN"}) == -1.0
    assert exact.compute_exact("weight_exponent", {"method": "dgpo", "region": "LN"}) == 1.0
    assert exact.compute_exact("weight_exponent", {"method": "dgpo", "region": "HP"}) == -0.5
    with pytest.raises(UserError, match="its weight is 0 in LN"):
        exact.compute_exact("weight_exponent", {"method": "grpo", "region": "LN"})


def test_fourteen_claims_cannot_fail_and_hold() -> None:
    """What follows from a formula is no evidence; a second set cannot decide against it either."""
    given = [claim.id for claim in read_claims().claims.values() if claim.cannot_fail]
    exact = [claim.id for claim in read_claims().claims.values() if claim.measure.exact is not None]
    assert len(given) == 14 and set(exact) <= set(given)
    results = read_results(Path(__file__).parents[2] / "docs" / "ledger" / "seeds-0.json")
    assert {results.outcomes[name].verdict for name in given} == {"holds"}
