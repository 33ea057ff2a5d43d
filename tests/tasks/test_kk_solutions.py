"""Worked solutions: right by the task's own judge, in both styles, and true in what they say on the way."""

from __future__ import annotations

import random
import re

import pytest

from rlvr_cli.tasks import kk_solutions as reasoning
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.kk_puzzles import generate_puzzle


def task(style: str, **config: object) -> KnightsAndKnaves:
    return KnightsAndKnaves.model_validate(config).for_model(style)  # type: ignore[arg-type]


def test_every_solution_gets_the_full_reward() -> None:
    for style, people in (("compact", 2), ("compact", 5), ("logic_rl", 2), ("logic_rl", 4), ("logic_rl", 8)):
        for depth in (1, 2, 3):
            kk = task(style, people={people: 1.0}, depth=depth)
            for problem in kk.problems("train", 4, depth):
                responses = list(kk.solutions(problem))
                assert responses, (style, people, depth)
                for response in responses:
                    for judge in (kk, kk.replace(reward="strict")):
                        verdict = judge.judge(problem, response)
                        assert (verdict.correct, verdict.reason) == (True, "correct"), (style, people, depth)
                        assert verdict.reward == judge.reward_range[1], (style, people, depth)


@pytest.mark.parametrize("people", [2, 3, 5, 8])
def test_what_is_said_under_true_suppositions_is_true(people: int) -> None:
    for seed in range(8):
        puzzle = generate_puzzle(random.Random(seed), people=people, depth=1 + seed % 2)
        true = {
            f"{name} is a {'knight' if role else 'knave'}"
            for name, role in zip(puzzle.names, puzzle.solution, strict=True)
        }
        for response in reasoning.write_solutions(puzzle, random.Random(seed)):
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
