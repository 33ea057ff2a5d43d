"""maj@k is the share of size-k subsets whose vote a right answer wins: checked by listing every subset."""

import itertools
import random
from collections import Counter

import pytest

from rlvr_cli.stats.passk import majority_at_k


def share_of_subsets_won(answers: list[str | None], right: str, k: int) -> float:
    won = 0
    subsets = list(itertools.combinations(answers, k))
    for subset in subsets:
        votes = Counter(answer for answer in subset if answer is not None)
        others = [count for answer, count in votes.items() if answer != right]
        won += votes[right] > max(others, default=0)
    return won / len(subsets)


def test_equals_the_share_of_subsets_won() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        n = rng.randint(1, 9)
        answers = [rng.choice(["K", "N", "KN", "NK", None]) for _ in range(n)]
        for k in range(1, n + 1):
            exact = share_of_subsets_won(answers, "K", k)
            assert majority_at_k(answers, [answer == "K" for answer in answers], k) == pytest.approx(exact, abs=1e-12)


def test_a_tie_is_not_a_win() -> None:
    assert majority_at_k(["K", "N"], [True, False], 2) == 0.0
    assert majority_at_k(["K", "K", "N"], [True, True, False], 3) == 1.0


def test_right_samples_vote_together_whatever_their_spelling_and_no_answer_is_no_vote() -> None:
    assert majority_at_k(["1/2", "0.5", "3", "3", "7"], [True, True, False, False, True], 5) == 1.0
    assert majority_at_k([None, None, "K"], [False, False, True], 3) == 1.0
    assert majority_at_k([None, None, None], [False, False, False], 2) == 0.0


def test_hundreds_of_distinct_answers_stay_exact() -> None:
    n = 256
    answers = ["right"] * 2 + [f"wrong {i}" for i in range(n - 2)]
    marks = [True] * 2 + [False] * (n - 2)
    # Both right samples must be among the k, and then win 2 to 1.
    assert majority_at_k(answers, marks, 64) == pytest.approx(64 * 63 / (n * (n - 1)), rel=1e-9)


@pytest.mark.parametrize(("marks", "k"), [([True], 1), ([True, False], 3), ([True, False], 0)])
def test_impossible_arguments_are_refused(marks: list[bool], k: int) -> None:
    with pytest.raises(ValueError, match=r"samples|equal lengths"):
        majority_at_k(["K", "N"], marks, k)
