"""My task: who of three people is a knight (always tells the truth), who a knave (always lies).

The puzzles are written in words that the lab's model reads, so that the task trains on any laptop. Write your own.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

PEOPLE = "ABC"
JOINED = {"and": lambda a, b: a and b, "or": lambda a, b: a or b, "iff": lambda a, b: a == b}
# The lowest and the highest reward; the highest is what counts as correct.
reward_range = (0.0, 1.0)


def problems(split: str, count: int, seed: int, plain: float = 0.4) -> Iterator[dict[str, Any]]:
    """`count` problems of train, dev or test: whatever JSON the functions below need.

    None is taken twice, and none of test or dev for train. `plain`, the share of claims about one person, is a key:
    task.plain=0.8 sets it. `subgroup`, if there is one, is the row of the accuracy table.
    """
    rng = random.Random(f"{split} {seed}")
    while count:
        question = " ".join(f"{speaker}: {_claim(speaker, rng, plain)}" for speaker in PEOPLE)
        answers = _answers(question)
        if len(answers) == 1:
            yield {"question": question, "answer": answers[0], "subgroup": "joined" if len(question) > 17 else "plain"}
            count -= 1


def prompt(problem: dict[str, Any]) -> str:
    """The text that the model continues; or messages, as [{"role": "user", "content": "..."}], for chat models."""
    return f"{problem['question']} ? <think>"


def reward(problem: dict[str, Any], response: str) -> float | dict[str, Any]:
    """The reward of any text whatsoever: 1 for the solution, 0.1 for another answer.

    A number, a bool, None where nothing can be said; or a dict of `reward` and more: `correct`, `answer` (what majority
    votes count), `parts` (they add up to the reward), and anything else to record with the response.
    """
    found = re.findall(r"<answer>\s*([KN]+)\s*</answer>", response)
    if not found:
        return 0.0
    return {"reward": 1.0 if found[-1] == problem["answer"] else 0.1, "answer": found[-1]}


def solution(problem: dict[str, Any]) -> str:
    """A right response, for `rlvr tasks show` and for supervised fine-tuning. It may be left out."""
    return f" </think> <answer> {problem['answer']} </answer>"


def _claim(speaker: str, rng: random.Random, plain: float) -> str:
    others = [person for person in PEOPLE if person != speaker]
    rng.shuffle(others)
    first, second = (person + rng.choice("KN") for person in others)
    if rng.random() < plain:
        return first
    return f"{first} {rng.choice(list(JOINED))} {second}"


def _answers(question: str) -> list[str]:
    """Every solution, as `KNK`."""
    claims = [said.split() for said in re.split(r" ?[ABC]: ", question)[1:]]
    return ["".join(roles) for roles in itertools.product("KN", repeat=3) if _consistent(claims, roles)]


def _consistent(claims: list[list[str]], roles: tuple[str, ...]) -> bool:
    def true(said: str) -> bool:
        return roles[PEOPLE.index(said[0])] == said[1]

    values = [true(one[0]) if len(one) == 1 else JOINED[one[1]](true(one[0]), true(one[2])) for one in claims]
    return all(value == (role == "K") for value, role in zip(values, roles, strict=True))
