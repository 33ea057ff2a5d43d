"""Worked solutions: right by the task's own judge, in both styles, and true in what they say on the way."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.tasks import kk_solutions as reasoning
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.kk_puzzles import KKPuzzle, generate_puzzle

ZOEY_OLIVER_MIA = KKPuzzle(
    ("Zoey", "Oliver", "Mia"),
    (
        ("->", ("telling-truth", 1), ("lying", 2)),
        ("not", ("lying", 0)),
        ("lying", 1),
    ),
    (True, True, False),
)


def task(style: str, **config: object) -> KnightsAndKnaves:
    return KnightsAndKnaves.model_validate(config).for_model(style)  # type: ignore[arg-type]


def test_every_solution_gets_the_full_reward() -> None:
    for reward in ["logic_rl", "strict"]:
        for style, people in [
            *(("compact", number) for number in range(2, 6)),
            *(("logic_rl", n) for n in range(2, 9)),
        ]:
            for depth in [1, 2, 3]:
                kk = task(style, people={people: 1.0}, depth=depth, reward=reward)
                for problem in kk.problems("train", 12, depth):
                    responses = list(kk.solutions(problem))
                    assert responses, (reward, style, people, depth)
                    for response in responses:
                        verdict = kk.judge(problem, response)
                        assert (verdict.correct, verdict.reason) == (True, "correct"), (reward, style, people, depth)
                        assert verdict.reward == kk.reward_range[1], (reward, style, people, depth)


def test_solutions_repeat_and_differ_between_problems() -> None:
    kk = task("logic_rl")
    first, second = kk.problems("train", 2, 0)
    assert list(kk.solutions(first)) == list(kk.solutions(first)) != list(kk.solutions(second))


def test_a_solution_reads_as_a_derivation() -> None:
    response = next(reasoning.solutions(ZOEY_OLIVER_MIA, random.Random(0)))
    assert response == (
        " Suppose Zoey is a knave. As Zoey is a knave, it is false that if Oliver is a knight then Mia is a knave, so "
        "Oliver is a knight and Mia is a knight. But then it is false that Zoey is not a knave, and Oliver, a knight, "
        "said so: a contradiction. So Zoey is a knight. Oliver said that Zoey is not a knave, which can only be true, "
        "so Oliver is a knight. As Zoey is a knight, it is true that if Oliver is a knight then Mia is a knave, so Mia "
        "is a knave. This agrees with every statement, so Zoey is a knight, Oliver is a knight and Mia is a knave. "
        "</think><answer> (1) Zoey is a knight\n(2) Oliver is a knight\n(3) Mia is a knave </answer>"
    )


@pytest.mark.parametrize("people", range(2, 9))
def test_what_is_said_under_true_suppositions_is_true(people: int) -> None:
    for seed in range(20):
        puzzle = generate_puzzle(random.Random(seed), people=people, depth=1 + seed % 2)
        true = {
            f"{name} is a {'knight' if role else 'knave'}"
            for name, role in zip(puzzle.names, puzzle.solution, strict=True)
        }
        for response in reasoning.solutions(puzzle, random.Random(seed)):
            supposed: list[str] = []
            for sentence in response.split(" </think>")[0].strip().rstrip(".").split(". "):
                if sentence.startswith("Suppose "):
                    supposed.append(sentence.removeprefix("Suppose "))
                elif sentence.endswith("a contradiction"):
                    assert not set(supposed) <= true
                    supposed.pop()
                elif set(supposed) <= true:
                    facts = re.split(r"^So |, so |; be that true or false, |^As \w+ is a knight, ", sentence)[-1]
                    assert set(re.split(r", | and ", facts)) <= true, sentence
            assert set(supposed) <= true


def test_the_last_solution_never_supposes_what_is_wrong() -> None:
    for seed in range(30):
        puzzle = generate_puzzle(random.Random(seed), people=6)
        *others, last = reasoning.solutions(puzzle, random.Random(seed))
        assert "contradiction" not in last
        assert len(last) <= max(map(len, others))


def test_compact_solutions_begin_with_every_guess() -> None:
    puzzle = generate_puzzle(random.Random(0), people=3)
    responses = list(compact.solutions(puzzle, random.Random(0)))
    assert len({response.split()[0] for response in responses}) == len(responses) == 8
    shortest = min(responses, key=len)
    assert shortest.split()[0] == compact.roles_text(puzzle.solution) and " no " not in shortest


def test_a_loaded_puzzle_without_statements_cannot_be_worked_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "p7", "question": "Who is who?", "names": ["Zoey", "Mia"], "solution": [true, false]}\n')
    kk = task("logic_rl", data=str(path), people={2: 1.0})
    (problem,) = kk.problems("all", 1, 0)
    with pytest.raises(UserError, match=r"task\.data: problem p7 has no `statements`"):
        kk.solutions(problem)
