"""The Countdown task: generated or loaded puzzles, TinyZero's prompts, verdicts by two rules."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.base import (
    Data,
    DataSet,
    DataSplit,
    Problem,
    RuleKey,
    Share,
    Split,
    SumToOne,
    Task,
    Verdict,
    made_here,
)
from rlvr_cli.tasks.countdown import paper, reasoning, strict
from rlvr_cli.tasks.countdown.load import load_problems, make_problem, problem_from
from rlvr_cli.tasks.countdown.prompt import base_prompt, chat_prompt
from rlvr_cli.tasks.countdown.puzzles import Puzzle, generate, key
from rlvr_cli.tasks.countdown.verdict import ANSWER, FORMAT, REASONS, verdict

# Draws in a row that bring nothing new before the puzzles count as used up.
_PATIENCE = 1000


class Countdown(Task):
    """Countdown: reach a target with given numbers."""

    sets: ClassVar = {
        "countdown": DataSet(
            "Countdown with 3 and 4 numbers (TinyZero's division into train and test).",
            {"train": "countdown/train", "test": "countdown/test"},
            "Jiayi-Pan/Countdown-Tasks-3to4",
            "none stated; TinyZero's code is Apache-2.0",
            size=1024,
            keys={"numbers": {3: 0.5, 4: 0.5}},
            length=(1024, "ours: the length of TinyZero's script"),
        ),
        "countdown-gen": made_here("Countdown, generated here."),
    }
    reasons: ClassVar = REASONS
    problem_keys: ClassVar = ("numbers",)

    name: Literal["countdown"] = Field("countdown", description="countdown = reach a target with given numbers.")
    numbers: Annotated[dict[Annotated[int, Field(ge=3, le=4)], Share], SumToOne] = Field(
        {3: 0.5, 4: 0.5},
        min_length=1,
        description="How many numbers are given (3 or 4) -> share of the problems; the shares sum to 1.",
    )
    style: Literal["tiny_zero", "tiny_zero_base"] = Field(
        "tiny_zero",
        description="How prompts are written: tiny_zero (TinyZero's, as chat turns where the model has a chat "
        "template), tiny_zero_base (TinyZero's for base models, always plain text).",
    )
    data: Data = "countdown-gen"
    reward: Literal["tiny_zero", "zero_one"] = Field(
        "tiny_zero",
        description="tiny_zero = TinyZero's: 0.1 for an answer block and 0.9 more for a right answer; zero_one = 1 for "
        "a right answer, else 0.",
    )
    rule: RuleKey = "paper"

    @property
    def reward_range(self) -> tuple[float, float]:
        return 0.0, FORMAT + ANSWER

    @property
    def prompt_tokens(self) -> int:
        return 256

    @property
    def format_range(self) -> tuple[float, float] | None:
        """The lowest and the highest reward of the format; 0 and 1 pay for none."""
        return (0.0, FORMAT) if self.reward == "tiny_zero" else None

    def problems(self, split: DataSplit, count: int, seed: int) -> list[Problem]:
        """``count`` problems of ``split``; no puzzle of one split is in another, whatever the order of its numbers.

        Raises UserError for loaded data that is missing, malformed or has no matching row.
        """
        if self.is_generated:
            return super().problems(split, count, seed)
        groups = self._loaded(split, seed)
        quotas = _quotas(self.numbers, count, {number: len(group) for number, group in groups.items()})
        return _shuffled(
            [problem for number, group in groups.items() for problem in group[: quotas[number]]], split, seed
        )

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        quotas = _quotas(self.numbers, count, {})
        drawn = [problem for number in quotas for problem in _generated(split, number, quotas[number], seed)]
        return _shuffled(drawn, split, seed)

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """The problem of a row's fields `nums` and `target`; `id` is ``where`` when there is none."""
        return problem_from(fields, where)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """The full prompt, ending in ``<think>``."""
        if self.style == "tiny_zero_base" or not getattr(tokenizer, "chat_template", None):
            return base_prompt(problem.question, tokenizer)
        return chat_prompt(problem.question, tokenizer)

    def solutions(self, problem: Problem) -> Iterator[str]:
        """Worked responses: tries that miss, then the steps to the target.

        Raises UserError for a loaded puzzle that has no solution.
        """
        rng = random.Random(stream_seed(0, "countdown", "solutions", problem.id))
        found = reasoning.solutions(_puzzle(problem), rng)
        first = next(found, None)
        if first is None:
            raise UserError(
                f"task.data: problem {problem.id} ({problem.structure}) has no solution, so it cannot be worked out. "
                "Remove its row, or give worked solutions of your own (method.data)."
            )
        yield first
        yield from found

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """Judge what follows the prompt's ``<think>``. Pure; never raises; time linear in the response."""
        rule = strict if self.rule == "strict" else paper
        reading = rule.read(response, problem.data["nums"], problem.data["target"])
        return verdict(self.reward, reading, truncated=truncated)

    def _loaded(self, split: DataSplit, seed: int) -> dict[int, list[Problem]]:
        groups: dict[int, list[Problem]] = {number: [] for number in self.numbers}
        for problem in load_problems(self.data, split, self.numbers, self.data_dir):
            groups[len(problem.data["nums"])].append(problem)
        for number, group in groups.items():
            random.Random(stream_seed(seed, "countdown", "rows", split, number)).shuffle(group)
        return groups


def _shuffled(problems: list[Problem], split: str, seed: int) -> list[Problem]:
    random.Random(stream_seed(seed, "countdown", split, "order")).shuffle(problems)
    return problems


def _puzzle(problem: Problem) -> Puzzle:
    return Puzzle(tuple(problem.data["nums"]), problem.data["target"])


def _generated(split: Split, numbers: int, count: int, seed: int) -> list[Problem]:
    """``count`` problems that differ in more than the order of the numbers.

    Raises UserError when a thousand draws in a row bring no new one.
    """
    rng = random.Random(stream_seed(seed, "countdown", split, numbers))
    problems: list[Problem] = []
    seen: set[str] = set()
    idle = 0
    while len(problems) < count:
        puzzle = generate(rng, numbers=numbers, split=split)
        if key(puzzle) in seen:
            idle += 1
            if idle == _PATIENCE:
                raise UserError(
                    f"task.train_size: no more than {len(problems)} {split} puzzles of {numbers} numbers turned up, "
                    f"and {count} are asked for. Ask for fewer."
                )
            continue
        idle = 0
        seen.add(key(puzzle))
        identity = text_digest(repr((puzzle.nums, puzzle.target)))[:16]
        problems.append(make_problem(puzzle, f"countdown-{numbers}n-{split}-{identity}"))
    return problems


def _quotas(shares: Mapping[int, float], count: int, available: Mapping[int, int]) -> dict[int, int]:
    """Split ``count`` by ``shares``, one problem at a time, so that a smaller set is part of a larger one."""
    quotas = dict.fromkeys(sorted(shares), 0)
    for given in range(1, count + 1):
        open_numbers = [number for number in quotas if quotas[number] < available.get(number, count)]
        if not open_numbers:
            break
        quotas[max(open_numbers, key=lambda number: shares[number] * given - quotas[number])] += 1
    return quotas
