"""The Knights & Knaves task: generated or loaded puzzles, prompts in two styles, verdicts in two strictnesses."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.section import Probability
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.base import Data, DataSet, DataSplit, Problem, Share, Split, SumToOne, Task, Verdict, made_here
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

# Draws in a row that bring nothing new before a pool counts as used up.
_PATIENCE = 400


class KnightsAndKnaves(Task):
    """Knights & Knaves puzzles."""

    sets: ClassVar = {
        "kk": DataSet(
            "Knights & Knaves, 2 to 8 people (mem-kk-logic).",
            {"train": "kk", "test": "kk"},
            "K-and-K/knights-and-knaves",
            "MIT (the generator)",
            size=500,
            keys={"people": dict.fromkeys(range(3, 8), 1 / 5)},
        ),
        "kk-gen": made_here("Knights & Knaves, generated here."),
    }
    reasons: ClassVar = REASONS
    problem_keys: ClassVar = ("people", "compound", "depth")

    name: Literal["kk"] = Field("kk", description="kk = Knights & Knaves puzzles.")
    people: Annotated[dict[Annotated[int, Field(ge=2, le=8)], Share], SumToOne] = Field(
        {2: 0.3, 3: 0.4, 4: 0.3},
        min_length=1,
        description="Number of people (2 to 8) -> share of the problems; the shares sum to 1.",
    )
    compound: Probability = Field(
        0.6, description="Share of statements that join two claims (and, or, if-then, if and only if)."
    )
    depth: Annotated[int, Field(ge=1, le=4)] = Field(
        1, description="How deep claims nest inside a compound statement; 1 = plain claims."
    )
    style: Literal["auto", "logic_rl", "compact"] = Field(
        "auto",
        description="How prompts are written: logic_rl (the paper's English), compact (the lab's words), "
        "auto = what the model was made for.",
    )
    data: Data = "kk-gen"
    reward: Literal["logic_rl", "strict", "zero_one", "random"] = Field(
        "logic_rl",
        description="logic_rl = the Logic-RL paper's score; strict = judges meaning, not surface; zero_one = 1 for "
        "what logic_rl takes for right, else 0; random = a coin that knows nothing of the answer, a control from which "
        "nothing should be learned.",
    )

    def for_model(self, style: str) -> Self:
        """With the style settled; the compact one, of the lab's model, has letters for few people."""
        chosen = self.style if self.style != "auto" else style
        if chosen == "compact" and max(self.people) > compact.MAX_PEOPLE:
            raise UserError(
                f"task.people: the compact style writes at most {compact.MAX_PEOPLE} people, {max(self.people)} are "
                "asked for. Remove them, or use a model that reads English (task.style=logic_rl)."
            )
        return self.replace(style=chosen)

    @classmethod
    def keys_for(cls, keys: Mapping[str, Any], style: str | None) -> Mapping[str, Any]:
        people = keys.get("people")
        if style != "compact" or not isinstance(people, Mapping):
            return keys
        fitting = [number for number in people if number <= compact.MAX_PEOPLE]
        return {**keys, "people": {number: 1 / len(fitting) for number in fitting}}

    def with_rule(self, rule: str) -> tuple[str, str]:
        """The Logic-RL paper's score stands for `paper`."""
        return "reward", "logic_rl" if rule == "paper" else rule

    def without_verifier(self) -> tuple[str, str, str] | None:
        return ("task.reward", "random", "the toss of a coin") if self.reward == "random" else None

    @property
    def prompt_tokens(self) -> int:
        """The limit of AR-Lopti's scripts; the lab's words are few."""
        return 24 if self.style == "compact" else 400

    @property
    def reward_range(self) -> tuple[float, float]:
        """Everything wrong and everything right; the coin's two faces for the control."""
        if self.reward == "zero_one":
            return 0.0, 1.0
        if self.reward == "random":
            return ANSWER_WRONG, ANSWER_RIGHT
        return FORMAT_WRONG + ANSWER_UNREADABLE, FORMAT_RIGHT + ANSWER_RIGHT

    @property
    def format_range(self) -> tuple[float, float] | None:
        """The lowest and the highest reward of the format; 0 and 1, and the coin, pay for none."""
        return None if self.reward in ("zero_one", "random") else (FORMAT_WRONG, FORMAT_RIGHT)

    def problems(self, split: DataSplit, count: int, seed: int) -> list[Problem]:
        """``count`` problems of ``split``; see docs/tasks/kk.md for how many distinct ones there are.

        Raises UserError for loaded data that is missing, malformed or has no matching row.
        """
        return super().problems(split, count, seed) if self.is_generated else self._loaded(split, count, seed)

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """The problem of a row's fields: question, names, solution and, if any, statements (docs/tasks/kk.md)."""
        return _row_problem(parse_row(fields, where))

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
        if self.reward == "strict":
            reading = strict.read(response, names, letters=self.style == "compact")
        elif self.style == "compact":
            reading = _read_compact(response, len(names))
        else:
            reading = read_logic_rl(response, names)
        judged = verdict(reading, solution, truncated=truncated)
        if self.reward == "zero_one":
            return replace(judged, parts={"answer": float(judged.correct)}, reward=float(judged.correct))
        if self.reward == "random":
            parts = coin_parts(problem.id, response)
            return replace(judged, parts=parts, reward=sum(parts.values()))
        return judged

    def _loaded(self, split: DataSplit, count: int, seed: int) -> list[Problem]:
        groups: dict[int, list[Row]] = {number: [] for number in self.people}
        for row in load_rows(self.data, split, self.people, self.data_dir):
            groups[len(row.names)].append(row)
        if self.style == "compact" and any(row.statements is None for group in groups.values() for row in group):
            raise UserError(f"task.data={self.data!r}: the compact style needs rows with `statements`; some have none.")
        for number, group in groups.items():
            random.Random(stream_seed(seed, "kk", "rows", split, number)).shuffle(group)
        quotas = _quotas(self.people, count, {number: len(group) for number, group in groups.items()})
        chosen = [_row_problem(row) for number, group in groups.items() for row in group[: quotas[number]]]
        return _shuffled(chosen, seed, split)

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        sources = {number: _Source(self, split, number, seed) for number in self.people}
        available: dict[int, int] = {}
        while True:
            quotas = _quotas(self.people, count, available)
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

    def __init__(self, config: KnightsAndKnaves, split: Split, people: int, seed: int) -> None:
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
        identity = text_digest(question)[:16]
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
