"""pass@k: the chance that at least one of k samples is right."""

from __future__ import annotations


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The unbiased estimate of pass@k from ``correct`` right ones among ``n`` samples.

    1 - C(n - c, k) / C(n, k), Chen et al. 2021 ("Evaluating Large Language Models Trained on Code"), equation 1, as a
    product of ratios so that nothing overflows. It is the share of the size-k subsets of the samples that hold a right
    one. Raises ValueError unless 1 <= k <= n and 0 <= correct <= n.
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
