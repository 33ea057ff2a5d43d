"""Outcomes in words and in cells of tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rlvr_cli.core.text import count
from rlvr_cli.ledger.claim_results import ClaimResult, Results, asked
from rlvr_cli.ledger.claims import ClaimSet
from rlvr_cli.ledger.schema import Claim
from rlvr_cli.ledger.verdicts import DECIDED, MOST_SEEDS, ClaimVerdict, agreement, leaning, wrong_by_chance

FOLLOWS = "follows from the formula"
ORDER: tuple[ClaimVerdict, ...] = ("holds", "does not hold", "undecided", "failed")
CHANGED = "changed since"
UNDECIDED_THERE = "undecided there"
LEANINGS = ("leaning the same way", "the other way", "without a number in some seed", "with both arms the same")


def _number(value: float) -> str:
    """Three digits: `0.0123`, `-4.5`, `1.2e+07`."""
    return f"{value:.3g}"


def effect(found: ClaimResult) -> str:
    """`0.62 [0.41, 0.83]`; without an interval where there is none, or no width of it."""
    if found.mean is None:
        return "-"
    if found.low is None or found.high is None or found.low == found.high:
        return _number(found.mean)
    return f"{_number(found.mean)} [{_number(found.low)}, {_number(found.high)}]"


def verdict_in_words(found: ClaimResult, claim: Claim | None = None) -> str:
    """`holds`, `undecided (31 seeds)`; `follows from the formula` where ``claim`` cannot fail and holds."""
    if claim is not None and claim.cannot_fail and found.verdict == "holds":
        return FOLLOWS
    if found.verdict != "undecided":
        return found.verdict
    if found.reason is not None:
        return f"undecided ({'both arms have the same number' if found.values else 'not seen with every seed'})"
    many = f"more than {MOST_SEEDS}" if found.needed is None else f"about {found.needed}"
    return f"undecided ({many} seeds)"


def size(found: ClaimResult) -> str:
    """How many seeds: `5`; `exact` for a number that follows from a definition."""
    return "exact" if found.exact else str(len(found.seeds)) if found.seeds else "-"


def current(claim: Claim, claim_set: ClaimSet, results: Results) -> ClaimResult | None:
    """The outcome of ``claim`` as it is written today; None where there is none, or of an earlier wording of it."""
    found = results.outcomes.get(claim.id)
    return found if found is not None and found.asked == asked(claim, claim_set) else None


def last(claim: Claim, claim_set: ClaimSet, results: Results) -> str:
    """The last verdict on ``claim`` for a list of claims."""
    found = results.outcomes.get(claim.id)
    if found is None:
        return "-"
    return (
        verdict_in_words(found, claim)
        if current(claim, claim_set, results) is not None
        else f"({found.verdict}; {CHANGED})"
    )


def that_can_fail(claims: Iterable[Claim], outcomes: Mapping[str, ClaimResult]) -> list[ClaimResult]:
    """The outcomes of the claims that a training can decide against: what may be counted as evidence.

    Of the others those too that do not hold, since something is broken then.
    """
    found = [(claim, outcomes[claim.id]) for claim in claims if claim.id in outcomes]
    return [one for claim, one in found if not (claim.cannot_fail and one.verdict == "holds")]


def claims_headline(claims: Sequence[Claim], outcomes: Mapping[str, ClaimResult]) -> str:
    """`Of 72 claims that can fail, 21 hold, ... 14 more follow from the formula.`"""
    counted = that_can_fail(claims, outcomes)
    rest = sum(claim.id in outcomes for claim in claims) - len(counted)
    more = f" {rest} more {'follow' if rest > 1 else 'follows'} from the formula." if rest else ""
    return f"Of {count(len(counted), 'claim')} that can fail, {_counts(counted)}.{more}"


def _counts(outcomes: Iterable[ClaimResult]) -> str:
    """`30 hold, 4 do not hold, 3 are undecided at this scale`."""
    found = Counter(one.verdict for one in outcomes)
    scale = "undecided at this scale"
    one = {"holds": "holds", "does not hold": "does not hold", "undecided": f"is {scale}", "failed": "failed"}
    many = {"holds": "hold", "does not hold": "do not hold", "undecided": f"are {scale}", "failed": "failed"}
    parts = [f"{found[kind]} {(one if found[kind] == 1 else many)[kind]}" for kind in ORDER if found[kind]]
    return ", ".join(parts) or "none"


def by_chance(outcomes: Sequence[ClaimResult]) -> str:
    """Return how many claims an interval tests and decides, and how many verdicts may be wrong by chance alone."""
    tested = [result for result in outcomes if not result.exact and result.low != result.high]
    if not tested:
        return "No verdict rests on an interval."
    decided = sum(result.verdict in DECIDED for result in tested)
    least, most = wrong_by_chance(len(tested))
    return (
        f"A 95% interval tests {count(len(tested), 'claim')} and decides {decided}; by chance alone at most "
        f"{least:.1f} verdicts are wrong on average, {most:.1f} if every truth lies on its threshold."
    )


def other_set(found: ClaimResult, other: ClaimResult | None) -> str:
    """What a second set of seeds says: `agrees`, `contradicts: does not hold`, `-` where there is nothing to say."""
    if other is None or found.exact:
        return "-"
    said = agreement(found.verdict, other.verdict)
    if said is None:
        return "-" if other.verdict == found.verdict else f"{other.verdict} there"
    return f"contradicts: {other.verdict}" if said == "contradicts" else said


def agreements(claims: Iterable[Claim], outcomes: Mapping[str, ClaimResult], others: Mapping[str, ClaimResult]) -> str:
    """On how many of the decided claims a second set agrees, and which way it leans where it decides nothing.

    Exact statements and claims that cannot fail are left out: no seed decides them.
    """
    said, leans = Counter[str](), Counter[str]()
    for claim in claims:
        found, other = outcomes.get(claim.id), others.get(claim.id)
        if found is None or other is None or found.exact or claim.cannot_fail:
            continue
        kind = agreement(found.verdict, other.verdict)
        if kind is not None:
            said[kind] += 1
        if kind == UNDECIDED_THERE:
            leans[_leaning(found, other, claim)] += 1
    rest = [f"{said[kind]} {kind}" for kind in ("failed there", UNDECIDED_THERE) if said[kind]]
    ways = ", ".join(f"{leans[way]} {way}" for way in LEANINGS if leans[way])
    also = f" ({', '.join(rest)}{': ' if ways else ''}{ways})" if rest else ""
    against = said["contradicts"] or "none"
    decided = count(said.total(), "verdict")
    return f"agrees on {said['agrees']} of {decided} resting on seeds and contradicts {against}{also}"


def _leaning(found: ClaimResult, other: ClaimResult, claim: Claim) -> str:
    same, against, no_number, arms_alike = LEANINGS
    if other.mean is None:
        return arms_alike if other.values else no_number
    return same if leaning(other.mean, claim.rule) == found.verdict else against
