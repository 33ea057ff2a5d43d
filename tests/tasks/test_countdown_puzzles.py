"""Puzzles: the solver misses nothing, problems repeat and are held out, solutions are right, the public rows too."""

import gzip
import itertools
import json
import os
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import Problem
from rlvr_cli.tasks import countdown_puzzles as puzzles
from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.countdown_puzzles import CountdownPuzzle
from tests.tasks.countdown_oracles import exact_value
from tests.tasks.tokenizers import Chat

_DATA = os.environ.get("RLVR_DATA_DIR") or Path(__file__).resolve().parents[3] / "shared" / "data"
PUBLIC = Path(_DATA) / "countdown"


def task(style: str = "tiny_zero", **config: Any) -> Countdown:
    return Countdown.model_validate(config).replace(style=style)


def reachable(nums: tuple[Fraction, ...]) -> set[Fraction]:
    """Every value that combining two numbers again and again can end in; no memory, no short cuts."""
    if len(nums) == 1:
        return set(nums)
    values = set()
    for i, j in itertools.permutations(range(len(nums)), 2):
        rest = tuple(number for place, number in enumerate(nums) if place not in (i, j))
        a, b = nums[i], nums[j]
        for value in (a + b, a - b, a * b, *((a / b,) if b else ())):
            values |= reachable((*rest, value))
    return values


@pytest.mark.parametrize(("numbers", "sets"), [(2, 30), (3, 20), (4, 2)])
def test_the_solver_agrees_with_brute_force_on_every_target(numbers: int, sets: int) -> None:
    rng = random.Random(numbers)
    solvable = 0
    for _ in range(sets):
        nums = tuple(rng.choice((rng.randint(0, 9), rng.randint(1, 99))) for _ in range(numbers))
        reached = reachable(tuple(Fraction(number) for number in nums))
        for target in range(-20, 121):
            found = list(puzzles.find_solutions(CountdownPuzzle(nums, target)))
            assert bool(found) == (target in reached), (nums, target)
            assert all(puzzles.evaluate(expression) == target for expression in found)
            solvable += bool(found)
    assert solvable > 40


def eval_exactly(text: str) -> Fraction:
    value = exact_value(text)
    assert value is not None
    return value


def test_splits_share_no_puzzle_whatever_the_order_of_the_numbers() -> None:
    sets = {split: task().problems(split, 120, 0) for split in ("train", "dev", "test")}
    keys = {
        split: {(tuple(sorted(problem.data["nums"])), problem.data["target"]) for problem in problems}
        for split, problems in sets.items()
    }
    for split, problems in sets.items():
        assert len(keys[split]) == len({problem.id for problem in problems}) == 120
        assert all(len(problem.data["nums"]) in (3, 4) for problem in problems)
    for one, other in itertools.combinations(keys.values(), 2):
        assert not one & other
    for nums, target in keys["train"]:
        assert {puzzles.split_for(CountdownPuzzle(order, target)) for order in itertools.permutations(nums)} == {
            "train"
        }


def test_shares_of_numbers_are_kept_and_a_smaller_set_is_part_of_a_larger_one() -> None:
    kept = task(numbers={3: 0.25, 4: 0.75})
    large = kept.problems("dev", 80, 0)
    assert Counter(problem.subgroup for problem in large) == {"3 numbers": 20, "4 numbers": 60}
    assert {problem.id for problem in kept.problems("dev", 33, 0)} < {problem.id for problem in large}


def test_shares_must_sum_to_one_and_generated_sets_have_no_split_all() -> None:
    with pytest.raises(ValidationError, match=r"the shares sum to 0\.5; they must sum to 1"):
        task(numbers={3: 0.5})
    with pytest.raises(UserError, match="split `all` is for loaded problems"):
        task().problems("all", 1, 0)  # type: ignore[arg-type]


def test_worked_solutions_are_judged_correct_by_both_rules_and_every_step_is_true() -> None:
    countdown = task()
    strict = task(rule="strict")
    for problem in countdown.problems("train", 40, 1):
        solutions = list(countdown.solutions(problem))
        assert solutions == list(countdown.solutions(problem))
        assert 2 <= len(solutions) <= 5
        for solution in solutions:
            assert countdown.judge(problem, solution).reward == strict.judge(problem, solution).reward == 1.0
            check_steps(problem, solution)


def check_steps(problem: Problem, solution: str) -> None:
    reasoning = solution.partition(" </think>")[0].strip()
    *steps, last = (step.removesuffix(".") for step in reasoning.split(". "))
    assert last == f"That is {problem.data['target']}"
    for step in steps:
        claim, _, no = step.partition(", not ")
        left, _, right = claim.partition(" = ")
        sides = [eval_exactly(side.replace("(-", "(0-")) for side in (left, right.replace("-", "0-", 1))]
        assert sides[0] == sides[1]
        assert not no or sides[0] != int(no) == problem.data["target"]


def test_a_puzzle_without_a_solution_says_so() -> None:
    problem = Countdown().problem_from({"nums": [1, 1, 1], "target": 99, "id": "ones"}, "here")
    with pytest.raises(UserError, match=r"problem ones \(1 1 1 = 99\) has no solution"):
        list(task().solutions(problem))


@pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"no public Countdown rows at {PUBLIC}")
def test_the_public_rows_load_their_prompts_are_ours_and_their_worked_solutions_are_right() -> None:
    text = gzip.decompress((PUBLIC / "test.jsonl.gz").read_bytes()).decode()
    public = {row["id"]: row["prompt"] for row in map(json.loads, text.splitlines())}
    for rule in ("paper", "strict"):
        countdown = task(data=str(PUBLIC), rule=rule)
        problems = countdown.problems("test", 2000, 0)
        assert len(problems) == len(public) == 1024
        for problem in problems:
            assert countdown.prompt(problem, Chat()) == public[problem.id]
        for problem in problems[::10]:
            assert all(countdown.judge(problem, solution).reward == 1.0 for solution in countdown.solutions(problem))
