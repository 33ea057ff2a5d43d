"""Generated mathematics: exact answers, repeatable sets, splits apart, worked solutions that the judge takes."""

import random
import re
from collections import Counter
from fractions import Fraction

import pytest

from rlvr_cli.tasks.gsm8k.task import GSM8K
from rlvr_cli.tasks.math.problems import FAMILIES, draw, root, square_part
from rlvr_cli.tasks.math.task import MathTask

TASKS = [MathTask(), GSM8K(data="gsm8k-gen")]
STRICT = [
    MathTask(rule="strict"),
    MathTask(rule="strict", reward="gtpo"),
    GSM8K(data="gsm8k-gen", rule="strict"),
    GSM8K(data="gsm8k-gen", rule="strict", reward="gtpo"),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_sets_are_repeatable_and_splits_apart(task):
    sets = {split: task.problems(split, 1000, 7) for split in ("train", "dev", "test")}
    for split, problems in sets.items():
        assert len({problem.id for problem in problems}) == len({problem.question for problem in problems}) == 1000
        assert task.problems(split, 300, 7) == problems[:300]
        assert task.problems(split, 20, 8) != problems[:20]
    structures = {split: {problem.structure for problem in problems} for split, problems in sets.items()}
    assert not structures["train"] & structures["dev"] and not structures["train"] & structures["test"]
    assert not structures["dev"] & structures["test"]


@pytest.mark.parametrize("task", STRICT, ids=lambda task: f"{task.name}-{task.form}")
def test_worked_solutions_are_correct_even_to_the_strict_rule(task):
    problems = task.problems("train", 500, 3)
    solutions = [next(task.solutions(problem)) for problem in problems]
    verdicts = task.judge_many(problems, solutions, [False] * len(problems))
    assert all(verdict.correct and verdict.reward == task.reward_range[1] for verdict in verdicts)


def test_every_family_turns_up():
    rng = random.Random(0)
    counts = Counter(draw(rng).subgroup for _ in range(2000))
    assert counts.keys() == FAMILIES.keys() and min(counts.values()) > 200


def number(text):
    match = re.fullmatch(r"(-?)(?:\\frac\{(\d+)\}\{(\d+)\}|(\d+))", text)
    value = Fraction(int(match[2]), int(match[3])) if match[2] else Fraction(int(match[4]))
    return -value if match[1] else value


def value(expression, **names):
    """The exact value of generated LaTeX, by Python's own parser. For text of this project only."""
    text = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"(F(\1)/F(\2))", expression)
    text = re.sub(r"(\d+)\^\{(\d+)\}", r"F(\1)**\2", text)
    text = re.sub(r"\\frac\{(.*)\}\{(.*)\}", r"((\1)/(\2))", text)
    text = text.replace(r"\cdot", "*").replace(r"\div", "/").replace(r"\left", "").replace(r"\right", "")
    text = re.sub(r"(\d)([a-z])", r"\1*\2", text).replace("^", "**")
    return eval(text, {"F": Fraction, **names})  # noqa: S307


def test_answers_against_a_second_computation():
    rng = random.Random(5)
    seen = Counter()
    for _ in range(3000):
        problem = draw(rng)
        question, answer = problem.question, problem.data["answer"]
        found = re.findall(r"\$([^$]+)\$", question)
        if problem.subgroup in ("fractions", "arithmetic", "powers"):
            assert value(found[0]) == number(answer), question
        elif problem.subgroup == "linear equations":
            name = next(part for part in found if len(part) == 1)
            left, right = next(part for part in found if "=" in part).split("=")
            assert value(left, **{name: number(answer)}) == value(right, **{name: number(answer)}), question
        elif problem.subgroup == "systems":
            x, y = map(number, answer[1:-1].split(", "))
            for equation in found[:2]:
                left, right = equation.split("=")
                assert value(left, x=x, y=y) == int(right), question
        elif problem.subgroup == "quadratics" and "sqrt" not in answer:
            left = found[0].split("=")[0]
            assert value(left, **{found[1]: number(answer)}) == 0, question
            assert value(left, **{found[1]: number(answer) + 1}) > 0, question
        elif problem.subgroup == "quadratics":
            whole, outside, inside = re.fullmatch(r"(?:(-?\d+) \+ )?(\d*)\\sqrt\{(\d+)\}", answer).groups(default="")
            middle, under = int(whole or 0), int(outside or 1) ** 2 * int(inside)
            assert value(found[0].split("=")[0], **{found[1]: middle}) == -under, question
            assert value(found[0].split("=")[0], **{found[1]: middle + 1}) == 1 - under, question
        else:
            inner = int(re.fullmatch(r"\\sqrt\{(\d+)\}", found[0])[1])
            outside, inside = re.fullmatch(r"(\d+)\\sqrt\{(\d+)\}", answer).groups()
            assert int(outside) ** 2 * int(inside) == inner, question
        seen[problem.subgroup] += 1
    assert seen.total() == 3000 and len(seen) == 7


def test_roots_in_simplest_form():
    for inner in range(1, 2000):
        outside, inside = square_part(inner)
        assert outside * outside * inside == inner
        assert all(inside % (factor * factor) for factor in range(2, 45))
    assert [root(value) for value in (36, 2, 72)] == ["6", r"\sqrt{2}", r"6\sqrt{2}"]
