"""The ledger as a page: a function of the data and of the results, to the byte.

The stored page was written by `python -m tests.ledger.test_page`, and looked at.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr_cli.ledger.claim_results import ClaimResult, Results, asked, read_results
from rlvr_cli.ledger.claims import ClaimSet, read_claims
from rlvr_cli.ledger.figure import distance
from rlvr_cli.ledger.page import write_page
from rlvr_cli.ledger.schema import Rule

STORED = Path(__file__).parent / "page"
ROOT = Path(__file__).parents[2]


def stored() -> tuple[ClaimSet, Results, Results]:
    """The small ledger of the stored page, its results and those of a second set of seeds."""
    beside = STORED / "ledger"
    first, second = (read_results(beside / f"seeds-{seed}.json") for seed in (0, 10))
    return read_claims(STORED / "data"), first, second


def files(folder: Path) -> dict[str, bytes]:
    """The page and the files next to it."""
    paths = [folder / "ledger.md", *sorted((folder / "ledger").iterdir())]
    return {path.name: path.read_bytes() for path in paths}


def test_the_same_results_give_the_same_page(tmp_path: Path) -> None:
    write_page(tmp_path / "ledger.md", *stored())
    assert files(tmp_path) == files(STORED)


def test_a_claim_that_was_changed_since_is_not_shown_by_its_old_verdict(tmp_path: Path) -> None:
    claim_set, first, _ = stored()
    (name, *_) = claim_set.claims
    changed = claim_set.claims[name].model_copy(update={"rule": Rule(above=123.0)})
    write_page(tmp_path / "ledger.md", replace(claim_set, claims={**claim_set.claims, name: changed}), first, None)
    row = next(
        line for line in (tmp_path / "ledger.md").read_text().splitlines() if f"**{name.split('/')[1]}**" in line
    )
    assert "not run" in row and "above 123" in row


def test_the_committed_ledger_is_what_its_results_say(tmp_path: Path) -> None:
    page = ROOT / "docs" / "ledger.md"
    if not page.exists():
        pytest.skip("no ledger is committed")
    # The first set has the shortest name: seeds-0, before seeds-10 and seeds-0-again.
    paths = sorted((ROOT / "docs" / "ledger").glob("seeds-*.json"), key=lambda path: len(path.name))
    first, *others = [read_results(path) for path in paths]
    write_page(tmp_path / "ledger.md", read_claims(), first, others[0] if others else None)
    assert (tmp_path / "ledger.md").read_text() == page.read_text()


@pytest.mark.parametrize(
    ("mean", "half", "rule", "expected"),
    [
        (3.0, 1.0, Rule(above=1.0), 2.0),
        (3.0, 1.0, Rule(below=1.0), -2.0),
        (2.0, 0.5, Rule(within=(1.0, 5.0)), 2.0),
        (6.0, 0.5, Rule(within=(1.0, 5.0)), -2.0),
        (1e9, 1.0, Rule(above=0.0), 100.0),
    ],
)
def test_the_distance_from_the_threshold(mean: float, half: float, rule: Rule, expected: float) -> None:
    found = ClaimResult("x/y", "", "holds", [0, 1], [mean, mean], [], mean, mean - half, mean + half)
    assert distance(found, rule) == (expected, False)


def _outcome(claim_set: ClaimSet, name: str, seeds: list[int], values: list[float]) -> ClaimResult:
    from rlvr_cli.ledger.verdicts import judge_claim

    claim = claim_set.claims[name]
    found = judge_claim(values, claim.rule, exact=not seeds)
    about = (found.mean, found.low, found.high, found.needed)
    return ClaimResult(name, asked(claim, claim_set), found.verdict, seeds, values, [], *about)


def _results(claim_set: ClaimSet, first: int, values: dict[str, list[float]]) -> Results:
    outcomes = {
        name: _outcome(claim_set, name, [first + number for number in range(len(own))] if len(own) > 1 else [], own)
        for name, own in values.items()
    }
    failed = ClaimResult(
        "gtpo/fails", asked(claim_set.claims["gtpo/fails"], claim_set), "failed", reason="words of a-s0: no words."
    )
    machine = {"processor": "A processor", "cores": 2, "rlvr": "0.1.0", "torch": "2.13.0", "trl": "1.16.0"}
    both = {**outcomes, failed.claim: failed}
    return Results("lab", first, both, seconds=4000.0, sessions=2, workers=2, machine=machine)


def _store() -> None:
    """Write the stored page again, from made-up numbers of every kind of verdict."""
    claim_set = read_claims(STORED / "data")
    first = {
        "ar_lopti/exact": [2.0],
        "ar_lopti/holds": [1.2, 1.4, 1.1],
        "dgpo/does-not": [0.4, 0.5, 0.45],
        "dgpo/undecided": [0.4, -0.5, 0.25],
        "gtpo/no-spread": [1.0, 1.0],
    }
    second = {**first, "ar_lopti/holds": [1.3, 1.2, 1.5], "dgpo/does-not": [-0.4, -0.5, -0.45]}
    write_page(STORED / "ledger.md", claim_set, _results(claim_set, 0, first), _results(claim_set, 10, second))


if __name__ == "__main__":
    sys.exit(_store())
