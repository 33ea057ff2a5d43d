"""What is said of two sets of seeds."""

from __future__ import annotations

import re
from dataclasses import replace

from rlvr_cli.ledger.claim_results import ClaimResult
from rlvr_cli.ledger.schema import Claim
from rlvr_cli.ledger.wording import FOLLOWS, agreements, by_chance, claims_headline, that_can_fail, verdict_in_words
from tests.ledger.files import LENGTH


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def claim(name: str) -> Claim:
    return Claim.model_validate({**LENGTH, "id": f"landscape/{name}", "rule": {"above": 0}})


def test_a_second_set_agrees_contradicts_or_leans() -> None:
    def outcome(name: str, verdict: str, mean: float | None, values: tuple[float, ...] = (1.0, 2.0)) -> ClaimResult:
        return ClaimResult(f"landscape/{name}", "", verdict, [0, 1], list(values), mean=mean)  # type: ignore[arg-type]

    second = [
        outcome("same", "holds", 1.0),
        outcome("turned", "does not hold", -1.0),
        outcome("leans", "undecided", 0.1),
        outcome("leans-away", "undecided", -0.1),
        outcome("not-seen", "undecided", None, ()),
        outcome("alike", "undecided", None),
        outcome("broken", "failed", None, ()),
    ]
    first = [outcome(one.claim.partition("/")[2], "holds", 1.0) for one in second]
    first.append(outcome("open", "undecided", 0.1))
    second.append(outcome("open", "holds", 1.0))
    exact = replace(outcome("exact", "holds", 1.0), seeds=[])
    claims = [claim(one.claim.partition("/")[2]) for one in [*first, exact]]
    found, others = ({one.claim: one for one in [*some, exact]} for some in (first, second))
    assert agreements(claims, found, others) == (
        "agrees on 1 of 7 verdicts resting on seeds and contradicts 1 (1 failed there, 4 undecided there: 1 leaning "
        "the same way, 1 the other way, 1 without a number in some seed, 1 with both arms the same)"
    )
    # The other way round a verdict of "does not hold" leans where "holds" does not.
    turned = {"landscape/leans": outcome("leans", "does not hold", -1.0)}
    assert "1 undecided there: 1 the other way" in agreements([claim("leans")], turned, others)


def test_chance_errs_on_the_claims_that_were_tested_and_not_on_those_decided_alone() -> None:
    undecided = ClaimResult("landscape/a", "", "undecided", [0, 1], [1.0, -1.0], mean=0.0, low=-2.0, high=2.0)
    decided = replace(undecided, verdict="holds", low=0.5)
    point = replace(undecided, verdict="holds", low=0.0, high=0.0)
    without_interval = replace(undecided, low=None, high=None)
    text = by_chance([*[undecided] * 38, *[decided] * 2, point, without_interval])
    assert [float(number) for number in re.findall(r"[\d.]*\d", text)] == [95, 40, 2, 1.0, 2.0]
    assert "No verdict" in by_chance([point, without_interval])


def test_what_cannot_fail_is_no_evidence_unless_it_fails() -> None:
    can, given = claim("can"), claim("given").model_copy(update={"cannot_fail": "a theorem."})

    def outcomes(verdict: str) -> dict[str, ClaimResult]:
        return {
            one.id: ClaimResult(one.id, "", said, [0, 1], [1.0, 2.0])  # type: ignore[arg-type]
            for one, said in ((can, "undecided"), (given, verdict))
        }

    found = outcomes("holds")
    assert [one.claim for one in that_can_fail([can, given], found)] == ["landscape/can"]
    said = claims_headline([can, given], found)
    assert numbers(said) == [1, 1, 1]
    assert verdict_in_words(found[given.id], given) == FOLLOWS
    broken = outcomes("does not hold")
    assert numbers(claims_headline([can, given], broken)) == [2, 1, 1]
    assert verdict_in_words(broken[given.id], given) == "does not hold"
    assert numbers(agreements([given], found, found)) == [0, 0]
