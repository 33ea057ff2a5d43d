"""My task: find the knights (always truthful) and the knaves (always lying) among three people.

The puzzles use words that the lab's model reads, so that the task trains on any laptop. Replace them by yours.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

from rlvr_cli import Task


class MyTask(Task):
    """Find the knights and the knaves among three people."""

    plain: float = 0.4  # the share of claims about one person, a key: task.plain=0.8 sets it

    def problems(self, split: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
        rng = random.Random(f"{split} {seed}")
        while count:  # rlvr drops duplicates, and problems of test and dev from train
            claims = [self.claim(speaker, rng) for speaker in "ABC"]
            answers = ["".join(roles) for roles in itertools.product("KN", repeat=3) if consistent(claims, roles)]
            if len(answers) == 1:
                yield {"question": " ".join(map("{}: {}".format, "ABC", claims)), "answer": answers[0]}
                count -= 1

    def prompt(self, problem: dict[str, Any]) -> str:
        return f"{problem['question']} ? <think>"  # or messages: [{"role": "user", "content": "..."}]

    def judge(self, problem: dict[str, Any], response: str) -> float | dict[str, Any]:
        answers = re.findall(r"<answer>\s*([KN]+)\s*</answer>", response)
        return {"reward": 1.0 if answers[-1] == problem["answer"] else 0.1, "answer": answers[-1]} if answers else 0.0

    def claim(self, speaker: str, rng: random.Random) -> str:
        first, second = (person + rng.choice("KN") for person in rng.sample("ABC".replace(speaker, ""), 2))
        return first if rng.random() < self.plain else f"{first} {rng.choice(['and', 'or', 'iff'])} {second}"


def consistent(claims: list[str], roles: tuple[str, ...]) -> bool:
    true = {person + role: roles["ABC".index(person)] == role for person in "ABC" for role in "KN"}
    joined = {"and": lambda a, b: a and b, "or": lambda a, b: a or b, "iff": lambda a, b: a == b}
    words = [claim.split() for claim in claims]
    values = [true[w[0]] if len(w) == 1 else joined[w[1]](true[w[0]], true[w[2]]) for w in words]
    return all(value == (role == "K") for value, role in zip(values, roles, strict=True))
