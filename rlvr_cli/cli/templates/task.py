"""My task: who of three people is a knight (always tells the truth), who a knave (always lies).

The puzzles are written in words that the lab's model reads, so that the task trains on any laptop. Write your own.
"""

from __future__ import annotations

import itertools
import random
import re
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.section import Count
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.base import Data, Task
from rlvr_cli.tasks.problem import Problem, Split, Verdict, made_here

PEOPLE = "ABC"
JOINED = {"and": lambda a, b: a and b, "or": lambda a, b: a or b, "iff": lambda a, b: a == b}


class MyTask(Task):
    """Who of three people is a knight."""

    # The problems that are made up here, by their name. Data sets on the hub or in a folder would stand here too.
    sets: ClassVar = {"my-task-gen": made_here("Puzzles of three people, drawn here.")}
    # Every `reason` that `judge` gives.
    reasons: ClassVar = ("correct", "wrong", "no_answer")
    # Keys of yours that decide which problems there are.
    problem_keys: ClassVar = ("plain",)

    # What tables and folders call the task.
    name: Literal["my-task"] = Field("my-task", description="my-task = who of three people is a knight.")
    # A key with its bounds: task.plain=0.8 sets it.
    plain: Annotated[float, Field(ge=0.0, le=0.9)] = Field(0.4, description="Share of claims about one person.")
    train_size: Count = Field(512, description="Size of the training set.")
    data: Data = "my-task-gen"

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        """`count` different problems; those of train, dev and test have none in common."""
        rng = random.Random(stream_seed(seed, self.name, split))
        found: dict[str, Problem] = {}
        for _ in range(1000 * count):
            question = " ".join(f"{speaker}: {self._claim(speaker, rng)}" for speaker in PEOPLE)
            part = int(sha256(question.encode()).hexdigest(), 16) % 8
            if (part == 0, part == 1) == (split == "test", split == "dev") and len(_answers(question)) == 1:
                found[question] = self.problem_from({"question": question}, split)
            if len(found) == count:
                break
        return list(found.values())

    def _claim(self, speaker: str, rng: random.Random) -> str:
        others = [person for person in PEOPLE if person != speaker]
        rng.shuffle(others)
        first, second = (person + rng.choice("KN") for person in others)
        if rng.random() < self.plain:
            return first
        return f"{first} {rng.choice(list(JOINED))} {second}"

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """A row of a file (`task.data=rows.jsonl`): `{"question": "A: CN or BN B: AK iff CN C: AK"}`."""
        question = fields.get("question")
        if not isinstance(question, str) or len(answers := _answers(question)) != 1:
            raise UserError(f"{where}: question must be a puzzle with one solution; got {question!r:.60}")
        # Its id, the question, what `judge` needs, and the row of the accuracy table in which it counts.
        return Problem(question, question, {"answer": answers[0]}, "joined" if len(question) > 17 else "plain")

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """The text that the model continues. `rlvr_cli.tasks.prompts.chat_prompt` writes one for chat models."""
        return f"{problem.question} ? <think>"

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """The reward, from any text whatsoever: 1 for the solution, 0.1 for another answer."""
        found = re.findall(r"<answer>\s*([KN]+)\s*</answer>", response)
        if not found:
            return Verdict(0.0, {"answer": 0.0}, False, None, "no_answer")
        right = found[-1] == problem.data["answer"]
        reward = 1.0 if right else 0.1
        # Reward, its parts (they add up), whether it is correct, the answer that majority votes count, the reason.
        return Verdict(reward, {"answer": reward}, right, found[-1], "correct" if right else "wrong")


def _answers(question: str) -> list[str]:
    """Every solution, as `KNK`."""
    claim = r"[ABC][KN](?: (?:and|or|iff) [ABC][KN])?"
    parts = re.fullmatch(rf"A: ({claim}) B: ({claim}) C: ({claim})", question)
    claims = [said.split() for said in parts.groups()] if parts else []
    return ["".join(roles) for roles in itertools.product("KN", repeat=3) if claims and _consistent(claims, roles)]


def _consistent(claims: list[list[str]], roles: tuple[str, ...]) -> bool:
    def true(said: str) -> bool:
        return roles[PEOPLE.index(said[0])] == said[1]

    values = [true(one[0]) if len(one) == 1 else JOINED[one[1]](true(one[0]), true(one[2])) for one in claims]
    return all(value == (role == "K") for value, role in zip(values, roles, strict=True))
