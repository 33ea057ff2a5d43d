"""pass@k is the share of size-k subsets with a right sample: checked by listing every subset."""

import itertools
import math

import pytest

from rlvr_cli.stats.passk import pass_at_k


@pytest.mark.parametrize("n", range(1, 9))
def test_equals_the_share_of_subsets_with_a_right_sample(n: int) -> None:
    for correct in range(n + 1):
        marks = [True] * correct + [False] * (n - correct)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(marks, k))
            share = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(n, correct, k) == pytest.approx(share, abs=1e-12)


def test_large_n_neither_overflows_nor_loses_digits() -> None:
    n, correct, k = 100_000, 3, 50_000
    exact = 1 - math.prod((n - correct - k + i) / (n - correct + i) for i in range(1, correct + 1))
    assert pass_at_k(n, correct, k) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_impossible_counts_are_refused(n: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(n, correct, k)
