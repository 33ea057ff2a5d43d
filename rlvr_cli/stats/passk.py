"""pass@k and maj@k: the probability that one of k samples, or their majority answer, is correct."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache

import numpy as np


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from ``correct`` of ``n`` samples, 1 - C(n - c, k) / C(n, k).

    Chen et al. 2021 ("Evaluating Large Language Models Trained on Code"), equation 1, as a product of ratios to avoid
    overflow. Raises ValueError unless 1 <= k <= n and 0 <= correct <= n.
    """
    if not 1 <= k <= n:
        raise ValueError(f"k of pass@k must be between 1 and the number of samples, {n}; got {k}")
    if not 0 <= correct <= n:
        raise ValueError(f"correct must be between 0 and the number of samples, {n}; got {correct}")
    if n - correct < k:
        return 1.0
    none_right = 1.0
    for i in range(n - correct + 1, n + 1):
        none_right *= 1.0 - k / i
    return 1.0 - none_right


def majority_at_k(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int) -> float:
    """Return the exact share of the size-k subsets of the samples whose majority vote is correct.

    A sample votes for its answer; None abstains. Correct samples vote together, in any spelling, and need strictly more
    votes than every wrong answer: a tie is a loss.

    Args:
        answers: each sample's extracted answer, or None. correct: each sample's verdict.
    Raises ValueError unless 1 <= k <= n and both sequences have length n.
    """
    n = len(answers)
    if len(correct) != n:
        raise ValueError(f"answers and correct must have equal lengths; got {n} and {len(correct)}")
    if not 1 <= k <= n:
        raise ValueError(f"k of maj@k must be between 1 and the number of samples, {n}; got {k}")
    right = sum(correct)
    wrong = Counter(answer for answer, hit in zip(answers, correct, strict=True) if not hit and answer is not None)
    return _share_won(n, right, tuple(sorted(wrong.values())), k)


@lru_cache(maxsize=4096)
def _share_won(n: int, right: int, wrong: tuple[int, ...], k: int) -> float:
    """Return the share of subsets won, multivariate hypergeometric.

    Computed without overflow as binomials of rate k/n conditioned on a sum of k. For each number j of correct votes,
    the distributions of abstentions and of wrong votes, below j per answer, are convolved.
    """
    if right == 0:
        return 0.0
    if k == n:
        return float(right > max(wrong, default=0))
    rate = k / n
    empty = n - right - sum(wrong)
    correct_law = _binomial(right, rate)
    groups = Counter(wrong)
    won = 0.0
    for j in range(1, min(k, right) + 1):
        law = _truncate(_binomial(empty, rate), k - j)
        for size, count in groups.items():
            votes = _truncate(_binomial(size, rate), min(j - 1, k - j))
            law = _truncate(np.convolve(law, _convolution_power(votes, count, k - j)), k - j)
        if len(law) > k - j:
            won += float(correct_law[j] * law[k - j])
    return min(1.0, won / float(_binomial(n, rate)[k]))


def _convolution_power(law: np.ndarray, count: int, degree: int) -> np.ndarray:
    """Return the distribution of the sum of ``count`` independent variables of ``law``, up to ``degree``."""
    result = np.ones(1)
    while count:
        if count & 1:
            result = _truncate(np.convolve(result, law), degree)
        count >>= 1
        if count:
            law = _truncate(np.convolve(law, law), degree)
    return result


def _truncate(law: np.ndarray, degree: int) -> np.ndarray:
    return law[: degree + 1]


@lru_cache(maxsize=4096)
def _binomial(n: int, rate: float) -> np.ndarray:
    """Return the probabilities of 0..n successes, from log factorials."""
    steps = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    successes = np.arange(n + 1)
    log_choose = steps[n] - steps - steps[::-1]
    law: np.ndarray = np.exp(log_choose + successes * np.log(rate) + (n - successes) * np.log1p(-rate))
    return law
