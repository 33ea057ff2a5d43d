"""The Countdown task: generated or loaded puzzles, TinyZero's prompts, verdicts by two rules."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from rlvr_cli.config.data_sets import is_generated
from rlvr_cli.config.task_kinds import CountdownTaskConfig
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.base import Problem, Split, Verdict
from rlvr_cli.tasks.countdown import paper, reasoning, strict
from rlvr_cli.tasks.countdown.load import load_problems, make_problem, problem_from
from rlvr_cli.tasks.countdown.prompt import base_prompt, chat_prompt
from rlvr_cli.tasks.countdown.puzzles import Puzzle, generate, key
from rlvr_cli.tasks.countdown.verdict import ANSWER, FORMAT, REASONS, verdict
from rlvr_cli.tasks.rows import NO_ALL

__all__ = ["Countdown", "problem_from"]

# Draws in a row that bring nothing new before the puzzles count as used up.
_PATIENCE = 1000


class Countdown:
    """Countdown puzzles: combine 3 or 4 numbers to a target.

    Args:
        config: the ``task`` section.
        style: ``tiny_zero`` (through the chat template where there is one) or ``tiny_zero_base``.
    Raises:
        UserError: the shares of ``numbers`` do not sum to 1.
    """

    name = "countdown"
    reasons = REASONS
    reward_range = (0.0, FORMAT + ANSWER)

    def __init__(self, config: CountdownTaskConfig, style: str) -> None:
        total = sum(config.numbers.values())
        if abs(total - 1.0) > 1e-6:
            raise UserError(f"task.numbers: the shares sum to {total:g}, not 1.")
        self.config = config
        self.style = style

    @property
    def format_range(self) -> tuple[float, float] | None:
        """The lowest and the highest reward of the format; 0 and 1 pay for none."""
        return (0.0, FORMAT) if self.config.reward == "tiny_zero" else None

    @property
    def settings(self) -> dict[str, Any]:
        """The JSON values that decide problems, prompts and verdicts."""
        return {
            "name": self.name,
            "style": self.style,
            "reward": self.config.reward,
            "rule": self.config.rule,
            "numbers": {str(number): share for number, share in sorted(self.config.numbers.items())},
            "data": self.config.data,
        }

    def problems(self, split: Split | Literal["all"], count: int, seed: int) -> list[Problem]:
        """``count`` problems of ``split``; no puzzle of one split is in another, whatever the order of its numbers.

        Raises UserError for loaded data that is missing, malformed or has no matching row.
        """
        if not is_generated(self.config.data):
            groups = self._loaded(self.config.data, split, seed)
            available = {number: len(group) for number, group in groups.items()}
            quotas = _quotas(self.config.numbers, count, available)
        elif split == "all":
            raise UserError(NO_ALL)
        else:
            quotas = _quotas(self.config.numbers, count, {})
            groups = {number: _generated(split, number, quotas[number], seed) for number in quotas}
        chosen = [problem for number, group in groups.items() for problem in group[: quotas[number]]]
        random.Random(stream_seed(seed, "countdown", split, "order")).shuffle(chosen)
        return chosen

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
        rule = strict if self.config.rule == "strict" else paper
        reading = rule.read(response, problem.data["nums"], problem.data["target"])
        return verdict(self.config.reward, reading, truncated=truncated)

    def _loaded(self, data: str, split: Split | Literal["all"], seed: int) -> dict[int, list[Problem]]:
        groups: dict[int, list[Problem]] = {number: [] for number in self.config.numbers}
        for problem in load_problems(data, split, self.config.numbers, self.config.data_dir):
            groups[len(problem.data["nums"])].append(problem)
        for number, group in groups.items():
            random.Random(stream_seed(seed, "countdown", "rows", split, number)).shuffle(group)
        return groups


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
        identity = hashlib.sha256(repr((puzzle.nums, puzzle.target)).encode()).hexdigest()[:16]
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
