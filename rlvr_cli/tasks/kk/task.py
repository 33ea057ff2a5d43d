"""The Knights & Knaves task: generated or loaded puzzles, prompts in two styles, verdicts in two strictnesses."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from rlvr_cli.config.data_sets import is_generated
from rlvr_cli.config.task_kinds import KKTaskConfig
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.base import Problem, Split, Verdict
from rlvr_cli.tasks.kk import compact, reasoning, strict
from rlvr_cli.tasks.kk.load import Row, load_rows, parse_row
from rlvr_cli.tasks.kk.prompt import logic_rl_prompt
from rlvr_cli.tasks.kk.puzzles import Puzzle, Statement, english, generate_with_key, structure_key
from rlvr_cli.tasks.kk.verdict import (
    ANSWER_RIGHT,
    ANSWER_UNREADABLE,
    ANSWER_WRONG,
    FORMAT_RIGHT,
    FORMAT_WRONG,
    REASONS,
    Reading,
    coin_parts,
    read_logic_rl,
    verdict,
)
from rlvr_cli.tasks.rows import NO_ALL

# Draws in a row that bring nothing new before a pool counts as used up.
_PATIENCE = 400


class KnightsAndKnaves:
    """Knights & Knaves puzzles of 2 to 8 people.

    Args:
        config: the ``task`` section.
        style: ``logic_rl`` (the paper's English prompt) or ``compact`` (the lab model's words).
    Raises:
        UserError: the shares of ``people`` do not sum to 1, or the style cannot write that many people.
    """

    name = "kk"
    reasons = REASONS

    def __init__(self, config: KKTaskConfig, style: Literal["logic_rl", "compact"]) -> None:
        total = sum(config.people.values())
        problems = []
        if abs(total - 1.0) > 1e-6:
            problems.append(f"task.people: the shares sum to {total:g}, not 1.")
        if style == "compact" and max(config.people) > compact.MAX_PEOPLE:
            problems.append(
                f"task.people: the compact style writes at most {compact.MAX_PEOPLE} people, {max(config.people)} are "
                "asked for. Remove them, or use a model that reads English (task.style=logic_rl)."
            )
        if problems:
            raise UserError(problems)
        self.config = config
        self.style = style

    @property
    def reward_range(self) -> tuple[float, float]:
        """Everything wrong and everything right; the coin's two faces for the control."""
        if self.config.reward == "zero_one":
            return 0.0, 1.0
        if self.config.reward == "random":
            return ANSWER_WRONG, ANSWER_RIGHT
        return FORMAT_WRONG + ANSWER_UNREADABLE, FORMAT_RIGHT + ANSWER_RIGHT

    @property
    def format_range(self) -> tuple[float, float] | None:
        """The lowest and the highest reward of the format; 0 and 1, and the coin, pay for none."""
        return None if self.config.reward in ("zero_one", "random") else (FORMAT_WRONG, FORMAT_RIGHT)

    @property
    def settings(self) -> dict[str, Any]:
        """The JSON values that decide problems, prompts and verdicts."""
        return {
            "name": self.name,
            "style": self.style,
            "reward": self.config.reward,
            "people": {str(number): share for number, share in sorted(self.config.people.items())},
            "compound": self.config.compound,
            "depth": self.config.depth,
            "data": self.config.data,
        }

    def problems(self, split: Split | Literal["all"], count: int, seed: int) -> list[Problem]:
        """``count`` problems of ``split``; see docs/tasks/kk.md for how many distinct ones there are.

        Raises UserError for loaded data that is missing, malformed or has no matching row.
        """
        if not is_generated(self.config.data):
            return self._loaded(self.config.data, split, count, seed)
        if split == "all":
            raise UserError(NO_ALL)
        return self._generated(split, count, seed)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """The full prompt, ending in ``<think>``."""
        if self.style == "logic_rl":
            return logic_rl_prompt(problem.question, tokenizer)
        return compact.prompt(_puzzle(problem))

    def solutions(self, problem: Problem) -> Iterator[str]:
        """Worked responses in the style of the prompts, found from the puzzle's statements.

        Raises UserError for a loaded puzzle without statements.
        """
        if problem.data["statements"] is None:
            raise UserError(
                f"task.data: problem {problem.id} has no `statements`, so it cannot be worked out. Add them to its row "
                "(docs/tasks/kk.md), or give worked solutions of your own (method.data)."
            )
        rng = random.Random(stream_seed(0, "kk", "solutions", problem.id))
        solutions = compact.solutions if self.style == "compact" else reasoning.solutions
        return solutions(_puzzle(problem), rng)

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        """Judge what follows the prompt's ``<think>``. Pure; never raises; time linear in the response."""
        names, solution = problem.data["names"], problem.data["solution"]
        if self.config.reward == "strict":
            reading = strict.read(response, names, letters=self.style == "compact")
        elif self.style == "compact":
            reading = _read_compact(response, len(names))
        else:
            reading = read_logic_rl(response, names)
        judged = verdict(reading, solution, truncated=truncated)
        if self.config.reward == "zero_one":
            return replace(judged, parts={"answer": float(judged.correct)}, reward=float(judged.correct))
        if self.config.reward == "random":
            parts = coin_parts(problem.id, response)
            return replace(judged, parts=parts, reward=sum(parts.values()))
        return judged

    def _loaded(self, data: str, split: Split | Literal["all"], count: int, seed: int) -> list[Problem]:
        groups: dict[int, list[Row]] = {number: [] for number in self.config.people}
        for row in load_rows(data, split, self.config.people, self.config.data_dir):
            groups[len(row.names)].append(row)
        if self.style == "compact" and any(row.statements is None for group in groups.values() for row in group):
            raise UserError(f"task.data={data!r}: the compact style needs rows with `statements`; some have none.")
        for number, group in groups.items():
            random.Random(stream_seed(seed, "kk", "rows", split, number)).shuffle(group)
        quotas = _quotas(self.config.people, count, {number: len(group) for number, group in groups.items()})
        chosen = [_row_problem(row) for number, group in groups.items() for row in group[: quotas[number]]]
        return _shuffled(chosen, seed, split)

    def _generated(self, split: Split, count: int, seed: int) -> list[Problem]:
        sources = {number: _Source(self.config, split, number, seed) for number in self.config.people}
        available: dict[int, int] = {}
        while True:
            quotas = _quotas(self.config.people, count, available)
            for number, source in sources.items():
                if not source.fill(quotas[number]):
                    available[number] = len(source.problems)
            if all(len(source.problems) >= quotas[number] for number, source in sources.items()):
                break
        chosen = [problem for number, source in sources.items() for problem in source.problems[: quotas[number]]]
        return _shuffled(chosen, seed, split)


class _Source:
    """Distinct generated problems of one split and one number of people, drawn in a fixed order.

    Held-out problems have distinct statements, and a structure recurs only when no unused one turns up any more;
    training problems are drawn as they come and differ in names or statements.
    """

    def __init__(self, config: KKTaskConfig, split: Split, people: int, seed: int) -> None:
        self.config, self.split, self.people = config, split, people
        self.rng = random.Random(stream_seed(seed, "kk", split, people))
        self.problems: list[Problem] = []
        self.seen: set[Any] = set()
        self.uses: dict[str, int] = {}
        self.level = 0

    def fill(self, count: int) -> bool:
        """Draw until there are ``count`` problems; False when the pool is used up before that."""
        idle = 0
        while len(self.problems) < count:
            if self._draw():
                idle = 0
                continue
            idle += 1
            if idle >= _PATIENCE:
                if self.level > max(self.uses.values(), default=0):
                    return False
                self.level = 2 * self.level + 1
                idle = 0
        return True

    def _draw(self) -> bool:
        config = self.config
        puzzle, structure = generate_with_key(
            self.rng, people=self.people, compound=config.compound, depth=config.depth, split=self.split
        )
        key: Any = puzzle.statements if self.split != "train" else (puzzle.names, puzzle.statements)
        if key in self.seen or (self.split != "train" and self.uses.get(structure, 0) > self.level):
            return False
        self.seen.add(key)
        self.uses[structure] = self.uses.get(structure, 0) + 1
        question = english(puzzle, self.rng)
        identity = hashlib.sha256(question.encode()).hexdigest()[:16]
        self.problems.append(
            Problem(
                id=f"kk-{self.people}ppl-{self.split}-{identity}",
                question=question,
                data=_data(puzzle.names, puzzle.solution, puzzle.statements),
                subgroup=f"{self.people} people",
                structure=structure,
            )
        )
        return True


def problem_from(fields: Mapping[str, Any], where: str) -> Problem:
    """The problem of a row's fields: question, names, solution and, if there are any, statements (docs/tasks/kk.md).

    Raises UserError, naming ``where`` and the field, for what is no puzzle.
    """
    return _row_problem(parse_row(fields, where))


def _row_problem(row: Row) -> Problem:
    return Problem(
        id=row.id,
        question=row.question,
        data=_data(row.names, row.solution, row.statements),
        subgroup=f"{len(row.names)} people",
        structure=structure_key(row.statements) if row.statements is not None else None,
    )


def _data(
    names: tuple[str, ...], solution: tuple[bool, ...], statements: tuple[Statement, ...] | None
) -> dict[str, Any]:
    return {
        "names": list(names),
        "solution": list(solution),
        "statements": None if statements is None else [_as_list(statement) for statement in statements],
    }


def _puzzle(problem: Problem) -> Puzzle:
    data = problem.data
    statements = tuple(_as_statement(statement) for statement in data["statements"])
    return Puzzle(tuple(data["names"]), statements, tuple(data["solution"]))


def _as_list(statement: Statement) -> list[Any]:
    return [_as_list(part) if isinstance(part, tuple) else part for part in statement]


def _as_statement(value: list[Any]) -> Statement:
    return tuple(_as_statement(part) if isinstance(part, list) else part for part in value)


def _read_compact(response: str, people: int) -> Reading:
    if not compact.format_ok(response):
        return Reading(False, None)
    roles = compact.parse_answer(response)
    return Reading(True, roles if roles is not None and len(roles) == people else None)


def _quotas(shares: dict[int, float], count: int, available: dict[int, int]) -> dict[int, int]:
    """Split ``count`` by ``shares`` (largest remainder), giving what exceeds ``available`` to the other numbers."""
    quotas = dict.fromkeys(shares, 0)
    open_numbers = sorted(shares)
    left = count
    while left and open_numbers:
        total = sum(shares[number] for number in open_numbers)
        exact = {number: left * shares[number] / total for number in open_numbers}
        parts = {number: int(exact[number]) for number in open_numbers}
        by_remainder = sorted(open_numbers, key=lambda number: (parts[number] - exact[number], number))
        for number in by_remainder[: left - sum(parts.values())]:
            parts[number] += 1
        for number in open_numbers:
            quotas[number] = min(quotas[number] + parts[number], available.get(number, count))
        left = count - sum(quotas.values())
        open_numbers = [number for number in open_numbers if quotas[number] < available.get(number, count)]
    return quotas


def _shuffled(problems: list[Problem], seed: int, split: str) -> list[Problem]:
    random.Random(stream_seed(seed, "kk", split, "order")).shuffle(problems)
    return problems
