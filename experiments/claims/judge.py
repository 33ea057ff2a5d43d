"""From the numbers of a few seeds to a verdict, by a rule that was written down before. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from experiments.claims.claims import DECIDED, Claim, ClaimResult, ClaimVerdict, Contrast, Rule
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.stats.intervals import LEVEL, mean_interval, student_quantile

MOST_SEEDS = 1000
SAME = "both arms have the same number in every seed, to the last digit: there is no difference to judge"
# The summary that an analysis gave of the training of an arm and seed; raises RunError where there is none.
Summaries = Callable[[str, str, int], Mapping[str, float | None]]


@dataclass(frozen=True)
class Judgement:
    """A verdict with what it rests on.

    Attributes:
        mean, low, high: the effect over seeds with its 95% t interval; no interval for a single random number.
        needed: seeds that would decide an undecided claim if mean and spread stayed as they are; None for more than
            1000, and where a single seed shows no spread.
    """

    verdict: ClaimVerdict
    mean: float
    low: float | None
    high: float | None
    needed: int | None = None


def judge(values: Sequence[float], rule: Rule, *, exact: bool = False) -> Judgement:
    """Return the verdict on one number a seed.

    Args:
        exact: whether the number follows from a definition, so that it is the only one there is.
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
        return Judgement("undecided", estimate.value, None, None)
    verdict = verdict_on(low, high, rule)
    needed = seeds_to_decide(values, rule) if verdict == "undecided" else None
    return Judgement(verdict, estimate.value, low, high, needed)


def verdict_on(low: float, high: float, rule: Rule) -> ClaimVerdict:
    """Return the verdict on an interval: *beyond* a threshold leaves it out, *within* two takes both in.

    A point on a threshold is not beyond it. Of a mean as both ends it is the way in which the mean leans.
    """
    if rule.within is not None:
        if rule.within[0] <= low and high <= rule.within[1]:
            return "holds"
        return "does not hold" if high < rule.within[0] or low > rule.within[1] else "undecided"
    if rule.above is not None:
        return "holds" if low > rule.above else "does not hold" if high < rule.above or low == high else "undecided"
    assert rule.below is not None
    return "holds" if high < rule.below else "does not hold" if low > rule.below or low == high else "undecided"


def seeds_to_decide(values: Sequence[float], rule: Rule) -> int | None:
    """Return the least number of seeds whose interval, of the mean and spread seen, leaves out the nearest threshold.

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


def agreement(first: ClaimVerdict, second: ClaimVerdict | None) -> str | None:
    """Return what a second set of seeds says of a decided claim; None where the first decided nothing, or no second."""
    if first not in DECIDED or second is None:
        return None
    return "agrees" if second == first else "contradicts" if second in DECIDED else f"{second} there"


def judge_claim(claim: Claim, fingerprint: str, seeds: Sequence[int], summaries: Summaries) -> ClaimResult:
    """Return the outcome of ``claim`` over ``seeds``; what fails is said in it."""
    seeds = list(seeds)
    try:
        if claim.measure.exact is not None:
            value = EXACT[claim.measure.exact](**claim.measure.options)
            judged = judge([value], claim.rule, exact=True)
            about = (judged.mean, judged.low, judged.high)
            return ClaimResult(claim.id, fingerprint, judged.verdict, [], [value], [], *about)
        rows = [[_number(claim, *side, seed, summaries) for side in claim.sides()] for seed in seeds]
        # The seeds that have a number alone would be a choice of those that fit.
        without = [text for row in rows for text in row if isinstance(text, str)]
        if without:
            reason = "; ".join(dict.fromkeys(without))
            return ClaimResult(claim.id, fingerprint, "undecided", seeds, reason=reason)
        sides = [[number for number in row if not isinstance(number, str)] for row in rows]
        if claim.contrast is None:
            values, sides = [row[0] for row in sides], []
        else:
            values = [_contrast(claim.contrast, *row) for row in sides]
            if claim.rule.within is None and all(of == against for of, against in sides):
                return ClaimResult(claim.id, fingerprint, "undecided", seeds, values, sides, reason=SAME)
        judged = judge(values, claim.rule)
    except (RunError, UserError) as error:
        return ClaimResult(claim.id, fingerprint, "failed", reason=" ".join(str(error).split("\n")))
    about = (judged.mean, judged.low, judged.high)
    return ClaimResult(claim.id, fingerprint, judged.verdict, seeds, values, sides, *about, judged.needed)


def _number(claim: Claim, arm: str, number: str, seed: int, summaries: Summaries) -> float | str:
    """Return the number of an arm and seed; where it did not occur, a text that says so. Raises RunError."""
    analysis = str(claim.measure.analysis)
    try:
        summary = summaries(analysis, arm, seed)
    except RunError as error:
        raise RunError(f"{analysis} of {arm}-s{seed}: {error}") from None
    if number not in summary:
        raise RunError(f"{analysis} of {arm}-s{seed}: has no number {number}.{did_you_mean(number, summary)}")
    value = summary[number]
    return f"{arm}-s{seed}: {number} has no value (null)" if value is None else float(value)


def _contrast(contrast: Contrast, of: float, against: float) -> float:
    """Return the measure of one seed. Raises RunError for a ratio that does not exist."""
    if contrast.by == "difference":
        return of - against
    if against == 0 or (contrast.by == "log_ratio" and of / against <= 0):
        raise RunError(f"there is no {contrast.by} of {of:g} and {against:g}.")
    return of / against if contrast.by == "ratio" else math.log(of / against)


def updates_ratio(of: str, against: str) -> float:
    """Return the optimizer updates a rollout of a method over those of another, all else alike."""
    from rlvr_cli.config.load import load_config

    steps = [load_config(method=name).batch.steps_per_rollout for name in (of, against)]
    return steps[0] / steps[1]


def weight_exponent(method: str, region: str) -> float:
    """Return the exponent of a token's weight on grad pi in the ratio r, far outside the trust region.

    d log |w / pi| / d log r, with w the weight on grad log pi, in the regions that leave the trust region along the
    advantage: LN (A < 0, r -> 0) and HP (A > 0, r -> infinity). Below 0 in LN, or above 0 in HP, the weight grows
    without bound (DGPO paper, equation 9 and figure 2). Raises UserError where the weight is 0, as behind a hard clip.
    """
    from rlvr_cli.describe.named import policy_config
    from rlvr_cli.describe.weights import far_slope

    slope = far_slope(policy_config(method).with_max_length(1), region)
    if slope is None:
        raise UserError(f"{method}: its weight is 0 in {region}, where no power of the ratio describes it.")
    # The last digits are the rounding of logarithms, no part of an exponent.
    return round(slope, 9)


def passes_rise(method: str) -> float:
    """Return by how much the probabilities of the tokens rise from a method's first pass to its last.

    The mean old probability of the tokens that the last pass trains on, minus that of the first, for old probabilities
    spread evenly over 0 to 1: above 0 for Lopti, which trains on the low-probability tokens first (AR-Lopti paper,
    section 4.2). 0 for a method of one pass.
    """
    import torch

    from rlvr_cli.describe.named import policy_config
    from rlvr_cli.methods.base import Tokens

    passes = policy_config(method).with_max_length(1).passes
    old = ((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000).unsqueeze(0)
    tokens = Tokens(old.log(), old.log(), torch.ones_like(old), torch.ones_like(old))
    means = [float(old[passes.selected(tokens, which)].mean()) for which in passes.names]
    return means[-1] - means[0]


# Statements that need no training: numbers that follow from a method's definition alone.
EXACT: Mapping[str, Callable[..., float]] = {
    "passes_rise": passes_rise,
    "updates_ratio": updates_ratio,
    "weight_exponent": weight_exponent,
}
