"""The compact form of Countdown: its words, traces that the ordinary verifier finds right, and what it refuses."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import countdown_compact as compact
from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.countdown_puzzles import CountdownPuzzle
from rlvr_cli.tasks.problem import Problem

SMALL: dict[str, Any] = {"numbers": {3: 1.0}, "largest": 20, "targets": (10, 60)}
TASK = Countdown(**SMALL).for_model("compact")


def puzzle_of(problem: Problem) -> CountdownPuzzle:
    return CountdownPuzzle(tuple(problem.data["nums"]), problem.data["target"])


@pytest.mark.parametrize(
    ("nums", "target", "response"),
    [
        ((14, 2, 10), 18, "14 2 : 16 12 28 7 10 : 8 28 </think> <answer> ( 14 * 2 ) - 10 </answer>"),
        (
            (8, 13, 17),
            32,
            "13 8 : 21 5 104 x 17 : 15 49 x x x no 17 8 : 25 9 136 x 13 : 19 45 x x x no "
            "17 13 : 30 4 x x 8 : 24 40 4 </think> <answer> ( 17 - 13 ) * 8 </answer>",
        ),
        ((3, 2, 20), 15, "3 2 : 5 1 6 x 20 : x 35 x x 5 </think> <answer> 20 - ( 3 + 2 ) </answer>"),
    ],
)
def test_a_trace_searches_round_by_round(nums: tuple[int, ...], target: int, response: str) -> None:
    puzzle = CountdownPuzzle(nums, target)
    assert compact.write_prompt(puzzle) == f"{' '.join(map(str, nums))} = {target} ? <think>"
    assert list(compact.write_solutions(puzzle)) == [response]
    assert TASK.judge(Countdown().problem_from({"nums": list(nums), "target": target}, "x"), response).correct


def test_clean_traces_are_right_by_both_rules_and_have_known_words_alone() -> None:
    words, rng, without = set(compact.vocabulary()), random.Random(0), 0
    problems = TASK.problems("train", 150, 0)
    for problem in problems:
        assert set(TASK.prompt(problem, None).split()) <= words
        if compact.find_solving_round(puzzle_of(problem)) is None:
            without += 1
            continue
        response = compact.write_trace(puzzle_of(problem), rng)
        assert set(response.split()) <= words
        for rule in ("paper", "strict"):
            assert TASK.replace(rule=rule).judge(problem, response).correct
    assert without < 4, "the form leaves out few problems"


def test_a_problem_that_is_out_of_reach_is_an_error_and_no_endless_search() -> None:
    with pytest.raises(UserError, match=r"task\.targets"):
        Countdown(numbers={3: 1.0}, largest=2, targets=(90, 100)).problems("dev", 1, 0)


def test_the_style_is_what_the_model_was_made_for() -> None:
    assert TASK.style == "compact"
    assert Countdown(**SMALL).for_model("logic_rl").style == "tiny_zero"
    assert Countdown(**SMALL, style="tiny_zero_base").for_model("compact").style == "tiny_zero_base"
    with pytest.raises(UserError, match=r"task\.numbers.*3 numbers; got 4"):
        Countdown(numbers={3: 0.5, 4: 0.5}).for_model("compact")
