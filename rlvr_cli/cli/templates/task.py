"""My task: who of three people is a knight (always tells the truth), who a knave (always lies).

The puzzles are written in words that the lab's model reads, so that the task trains on any laptop. Write your own.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

from rlvr_cli import Task


class MyTask(Task):
    """Who of three people is a knight, who a knave."""

    plain: float = 0.4  # the share of claims about one person, a key: task.plain=0.8 sets it

    def problems(self, split: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
        rng = random.Random(f"{split} {seed}")
        while count:  # none is taken twice, and none of test or dev for train
            claims = [self.claim(speaker, rng) for speaker in "ABC"]
            answers = ["".join(roles) for roles in itertools.product("KN", repeat=3) if consistent(claims, roles)]
            if len(answers) == 1:
                yield {"question": " ".join(map("{}: {}".format, "ABC", claims)), "answer": answers[0]}
                count -= 1

    def prompt(self, problem: dict[str, Any]) -> str:
        return f"{problem['question']} ? <think>"  # or messages: [{"role": "user", "content": "..."}]

    def judge(self, problem: dict[str, Any], response: str) -> float | dict[str, Any]:
        found = re.findall(r"<answer>\s*([KN]+)\s*</answer>", response)
        return {"reward": 1.0 if found[-1] == problem["answer"] else 0.1, "answer": found[-1]} if found else 0.0

    def claim(self, speaker: str, rng: random.Random) -> str:
        first, second = (person + rng.choice("KN") for person in rng.sample("ABC".replace(speaker, ""), 2))
        return first if rng.random() < self.plain else f"{first} {rng.choice(['and', 'or', 'iff'])} {second}"


def consistent(claims: list[str], roles: tuple[str, ...]) -> bool:
    true = {person + role: roles["ABC".index(person)] == role for person in "ABC" for role in "KN"}
    joined = {"and": lambda a, b: a and b, "or": lambda a, b: a or b, "iff": lambda a, b: a == b}
    words = [claim.split() for claim in claims]
    values = [true[one[0]] if len(one) == 1 else joined[one[1]](true[one[0]], true[one[2]]) for one in words]
    return all(value == (role == "K") for value, role in zip(values, roles, strict=True))
