"""From the numbers of a few seeds to a verdict, by a rule that was written down before. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlvr_cli.ledger.schema import Rule
from rlvr_cli.stats.intervals import LEVEL, mean_interval, student_quantile

ClaimVerdict = Literal["holds", "does not hold", "undecided", "failed"]
DECIDED: tuple[ClaimVerdict, ...] = ("holds", "does not hold")
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Judgement:
    """What a claim came to.

    Attributes:
        mean, low, high: the effect over seeds with its 95% t interval; no interval for a single number of chance.
        needed: seeds that would decide an undecided claim if mean and spread stayed as they are; None for more than
            1000, and where one seed shows no spread.
    """

    verdict: ClaimVerdict
    mean: float
    low: float | None
    high: float | None
    n: int
    needed: int | None = None


def judge_claim(values: Sequence[float], rule: Rule, *, exact: bool = False) -> Judgement:
    """The verdict on one number a seed.

    Args:
        exact: whether the number follows from a definition, so that one of it is all there is.
    Raises:
        ValueError: no number, or one that is not finite.
    """
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"a measure must be finite, not {list(values)}")
    estimate = mean_interval(values)
    # Numbers that are the same with every seed have no t interval; here they are a point.
    point = exact or (estimate.n > 1 and estimate.low is None)
    low, high = (estimate.value, estimate.value) if point else (estimate.low, estimate.high)
    if low is None or high is None:
        return Judgement("undecided", estimate.value, None, None, estimate.n)
    verdict = _verdict(low, high, rule)
    needed = seeds_to_decide(values, rule) if verdict == "undecided" else None
    return Judgement(verdict, estimate.value, low, high, estimate.n, needed)


def _verdict(low: float, high: float, rule: Rule) -> ClaimVerdict:
    """*Beyond* a threshold leaves the threshold out, *within* two takes both in."""
    if rule.within is not None:
        if rule.within[0] <= low and high <= rule.within[1]:
            return "holds"
        return "does not hold" if high < rule.within[0] or low > rule.within[1] else "undecided"
    above = rule.above is not None
    threshold = rule.above if rule.above is not None else rule.below
    assert threshold is not None
    # Without any spread the interval is a point, and on the threshold it is not beyond it.
    if above:
        return "holds" if low > threshold else "does not hold" if high < threshold or low == high else "undecided"
    return "holds" if high < threshold else "does not hold" if low > threshold or low == high else "undecided"


def seeds_to_decide(values: Sequence[float], rule: Rule) -> int | None:
    """The least number of seeds whose interval, of the mean and spread seen, does not reach the nearest threshold.

    The least n with t(n - 1) s / sqrt(n) < |mean - threshold|; None for none up to 1000.
    """
    mean, n = sum(values) / len(values), len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    margin = min(abs(mean - bound) for bound in rule.bounds if bound is not None)
    for seeds in range(2, MOST_SEEDS + 1):
        if student_quantile(seeds - 1) * spread / math.sqrt(seeds) < margin:
            return seeds
    return None


def wrong_by_chance(tested: int) -> tuple[float, float]:
    """Return how many verdicts on ``tested`` claims chance makes wrong, at most: truths off the threshold, and on it.

    An interval leaves the truth out on the wrong side in 2.5% of cases. A truth that lies on the threshold itself is
    left out on either side, in 5%. Claims that stay undecided count: they could have been decided wrongly.
    """
    return (1 - LEVEL) / 2 * tested, (1 - LEVEL) * tested


def leaning(mean: float, rule: Rule) -> ClaimVerdict:
    """The verdict if ``mean`` were the truth."""
    return _verdict(mean, mean, rule)


def agreement(first: ClaimVerdict, second: ClaimVerdict | None) -> str | None:
    """What a second set of seeds says of a decided claim; None where the first decided nothing, or there is none."""
    if first not in DECIDED or second is None:
        return None
    return "agrees" if second == first else "contradicts" if second in DECIDED else f"{second} there"
