"""pass@k and maj@k: the probabilities that any of k samples, or the majority answer among them, is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache

import numpy as np


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from ``correct`` right ones among ``n`` samples.

    1 - C(n - c, k) / C(n, k), Chen et al. 2021 ("Evaluating Large Language Models Trained on Code"), equation 1, as a
    product of ratios to avoid overflow. It is the share of the size-k subsets of the samples with at least one right
    sample. Raises ValueError unless 1 <= k <= n and 0 <= correct <= n.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} samples and k of at least 1; there are n={n}")
    if not 0 <= correct <= n:
        raise ValueError(f"{correct} right ones among {n} samples")
    if n - correct < k:
        return 1.0
    none_right = 1.0
    for i in range(n - correct + 1, n + 1):
        none_right *= 1.0 - k / i
    return 1.0 - none_right


def majority_at_k(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int) -> float:
    """Return the exact share of the size-k subsets of the samples whose vote is won by right answers.

    A sample votes for its answer; None does not vote and never wins. Right samples vote together, in any spelling.
    The vote is won by strictly more votes than every wrong answer has: a tie is not a win.

    Args:
        answers: each sample's extracted answer, or None. correct: whether each sample is right.
    Raises ValueError unless 1 <= k <= n and both sequences have length n.
    """
    n = len(answers)
    if len(correct) != n:
        raise ValueError(f"{n} answers but {len(correct)} marks")
    if not 1 <= k <= n:
        raise ValueError(f"maj@{k} needs at least {k} samples and k of at least 1; there are n={n}")
    right = sum(correct)
    wrong = Counter(answer for answer, mark in zip(answers, correct, strict=True) if not mark and answer is not None)
    return _share_won(n, right, tuple(sorted(wrong.values())), k)


@lru_cache(maxsize=4096)
def _share_won(n: int, right: int, wrong: tuple[int, ...], k: int) -> float:
    """Return the share of subsets won, from independent binomials of rate k/n conditioned on a sum of k.

    This is the multivariate hypergeometric distribution, without overflow. For each number of right votes j, the
    distributions of empty and wrong votes, with every wrong answer below j, are convolved.
    """
    if right == 0:
        return 0.0
    if k == n:
        return float(right > max(wrong, default=0))
    rate = k / n
    empty = n - right - sum(wrong)
    right_law = _binomial(right, rate)
    groups = Counter(wrong)
    won = 0.0
    for j in range(1, min(k, right) + 1):
        law = _cut(_binomial(empty, rate), k - j)
        for size, count in groups.items():
            votes = _cut(_binomial(size, rate), min(j - 1, k - j))
            law = _cut(np.convolve(law, _power(votes, count, k - j)), k - j)
        if len(law) > k - j:
            won += float(right_law[j] * law[k - j])
    return min(1.0, won / float(_binomial(n, rate)[k]))


def _power(law: np.ndarray, count: int, degree: int) -> np.ndarray:
    """Return the distribution of the sum of ``count`` independent variables of ``law``, up to ``degree``."""
    result = np.ones(1)
    while count:
        if count & 1:
            result = _cut(np.convolve(result, law), degree)
        count >>= 1
        if count:
            law = _cut(np.convolve(law, law), degree)
    return result


def _cut(law: np.ndarray, degree: int) -> np.ndarray:
    return law[: degree + 1]


@lru_cache(maxsize=4096)
def _binomial(n: int, rate: float) -> np.ndarray:
    """Return the probabilities of 0..n successes, from log factorials."""
    steps = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    successes = np.arange(n + 1)
    log_choose = steps[n] - steps - steps[::-1]
    law: np.ndarray = np.exp(log_choose + successes * np.log(rate) + (n - successes) * np.log1p(-rate))
    return law
