"""Puzzles: the solver misses nothing, problems repeat and are held out, solutions are right, prompts are TinyZero's."""

import itertools
import random
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import Problem
from rlvr_cli.tasks import countdown_puzzles as puzzles
from rlvr_cli.tasks.countdown import Countdown, problem_from
from rlvr_cli.tasks.countdown_puzzles import CountdownPuzzle


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


@pytest.mark.parametrize(("numbers", "sets"), [(2, 60), (3, 60), (4, 6)])
def test_the_solver_agrees_with_brute_force_on_every_target(numbers: int, sets: int) -> None:
    rng = random.Random(numbers)
    solvable = 0
    for _ in range(sets):
        nums = tuple(rng.choice((rng.randint(0, 9), rng.randint(1, 99))) for _ in range(numbers))
        reached = reachable(tuple(Fraction(number) for number in nums))
        for target in range(-20, 121):
            found = list(puzzles.find_solutions(CountdownPuzzle(nums, target)))
            assert bool(found) == (target in reached), (nums, target)
            assert all(puzzles.value_of(expression) == target for expression in found)
            solvable += bool(found)
    assert solvable > 100


@pytest.mark.slow
def test_the_solver_agrees_with_brute_force_on_a_hundred_sets_of_four() -> None:
    rng = random.Random(9)
    for _ in range(100):
        nums = tuple(rng.randint(1, 99) for _ in range(4))
        reached = reachable(tuple(Fraction(number) for number in nums))
        for target in range(1, 121):
            assert any(True for _ in puzzles.find_solutions(CountdownPuzzle(nums, target))) == (target in reached), (
                nums,
                target,
            )


def test_expressions_are_written_with_the_parentheses_they_need() -> None:
    for expression, text in {
        ("-", 9, ("-", 5, 2)): "9 - (5 - 2)",
        ("-", ("-", 9, 5), 2): "9 - 5 - 2",
        ("/", 8, ("*", 2, 4)): "8 / (2 * 4)",
        ("*", ("/", 8, 2), 4): "8 / 2 * 4",
        ("*", ("+", 8, 2), ("-", 4, 1)): "(8 + 2) * (4 - 1)",
        ("+", 8, ("-", 4, 1)): "8 + 4 - 1",
    }.items():
        assert puzzles.expression_text(expression) == text
        assert puzzles.value_of(expression) == eval_exactly(text)


def eval_exactly(text: str) -> Fraction:
    from tests.tasks.countdown_oracles import exact_value

    value = exact_value(text)
    assert value is not None
    return value


def test_problems_repeat_for_the_same_seed_and_differ_for_another() -> None:
    first, again = (task().problems("train", 60, 7) for _ in range(2))
    assert first == again
    assert {problem.id for problem in first}.isdisjoint(problem.id for problem in task().problems("train", 60, 8))


def test_the_generator_is_the_same_on_every_machine() -> None:
    """Sets made anywhere must be the same, so a change here is a change for everybody's results."""
    problems = task().problems("test", 4, 0)
    assert [(problem.data["nums"], problem.data["target"]) for problem in problems] == [
        ([49, 87, 76, 10], 61),
        ([65, 68, 45], 48),
        ([84, 61, 50], 73),
        ([8, 5, 2, 29], 13),
    ]


def test_splits_share_no_puzzle_whatever_the_order_of_the_numbers() -> None:
    sets = {split: task().problems(split, 400, 0) for split in ("train", "dev", "test")}
    keys = {
        split: {(tuple(sorted(problem.data["nums"])), problem.data["target"]) for problem in problems}
        for split, problems in sets.items()
    }
    for split, problems in sets.items():
        assert len(keys[split]) == len({problem.id for problem in problems}) == 400
        assert all(len(problem.data["nums"]) in (3, 4) for problem in problems)
    for one, other in itertools.combinations(keys.values(), 2):
        assert not one & other
    for nums, target in keys["train"]:
        assert {puzzles.split_for(CountdownPuzzle(order, target)) for order in itertools.permutations(nums)} == {
            "train"
        }


def test_every_generated_puzzle_is_solvable_and_within_the_public_sets_ranges() -> None:
    for problem in task(numbers={3: 0.5, 4: 0.5}).problems("test", 60, 3):
        nums, target = problem.data["nums"], problem.data["target"]
        assert (
            target in reachable_three(nums)
            if len(nums) == 3
            else next(puzzles.find_solutions(CountdownPuzzle(tuple(nums), target)))
        )
        assert all(1 <= number <= 99 for number in nums)
        assert 10 <= target <= 100


def reachable_three(nums: list[int]) -> set[Fraction]:
    return reachable(tuple(Fraction(number) for number in nums))


def test_shares_of_numbers_are_kept_and_a_smaller_set_is_part_of_a_larger_one() -> None:
    kept = task(numbers={3: 0.25, 4: 0.75})
    large = kept.problems("dev", 200, 0)
    assert Counter(problem.subgroup for problem in large) == {"3 numbers": 50, "4 numbers": 150}
    assert {problem.id for problem in kept.problems("dev", 33, 0)} < {problem.id for problem in large}


def test_shares_must_sum_to_one_and_generated_sets_have_no_split_all() -> None:
    with pytest.raises(ValidationError, match=r"the shares sum to 0\.5; they must sum to 1"):
        task(numbers={3: 0.5})
    with pytest.raises(UserError, match="split `all` is for loaded problems"):
        task().problems("all", 1, 0)  # type: ignore[arg-type]


def test_worked_solutions_are_judged_correct_by_both_rules_and_every_step_is_true() -> None:
    countdown = task()
    strict = task(rule="strict")
    for problem in countdown.problems("train", 80, 1):
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
    problem = problem_from({"nums": [1, 1, 1], "target": 99, "id": "ones"}, "here")
    with pytest.raises(UserError, match=r"problem ones \(1 1 1 = 99\) has no solution"):
        list(task().solutions(problem))


class ChatTokenizer:
    """The face of a tokenizer with Qwen's chat form."""

    chat_template = "qwen"
    ending = "<|im_start|>assistant\n"

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        turns = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in messages)
        return turns + self.ending

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": []}


class NoSystemTokenizer(ChatTokenizer):
    def apply_chat_template(self, messages: list[dict[str, str]], **options: bool) -> str:  # type: ignore[override]
        from jinja2 import TemplateError

        if messages[0]["role"] == "system":
            raise TemplateError("System role not supported")
        return super().apply_chat_template(messages, **options)


class BaseTokenizer:
    """The face of a base model's tokenizer, which puts <s> before every text."""

    chat_template = None
    bos_token, bos_token_id = "<s>", 1

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1]}


PROBLEM = problem_from({"nums": [79, 17, 60], "target": 36}, "here")


def test_a_template_without_a_system_turn_gets_the_instructions_in_the_users() -> None:
    prompt = task().prompt(PROBLEM, NoSystemTokenizer())
    assert prompt.startswith("<|im_start|>user\nYou are a helpful assistant.")
    assert prompt.endswith("assistant\nLet me solve this step by step.\n<think>")


def test_a_template_that_opens_the_thinking_itself_gets_nothing_more() -> None:
    tokenizer = ChatTokenizer()
    tokenizer.ending = "<|im_start|>assistant\n<think>\n"
    assert task().prompt(PROBLEM, tokenizer).endswith("<|im_start|>assistant\n<think>\n")


def test_the_base_prompt_is_plain_text_after_the_models_first_token() -> None:
    prompt = task().prompt(PROBLEM, BaseTokenizer())
    assert prompt.startswith("<s>A conversation between User and Assistant.")
    assert "\nUser: Using the numbers [79, 17, 60], create an equation that equals 36. You can" in prompt
    assert prompt.endswith("</answer>.\nAssistant: Let me solve this step by step.\n<think>")
    assert task("tiny_zero_base").prompt(PROBLEM, ChatTokenizer()) == prompt.removeprefix("<s>")
