"""Knights & Knaves problems: drawn here, or from a row of data. The row format is in docs/tasks/kk.md."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks.kk.puzzles import (
    MAX_PEOPLE,
    MIN_PEOPLE,
    KKPuzzle,
    Statement,
    english,
    generate_with_key,
    solve,
    structure_key,
)
from rlvr_cli.tasks.problem import MissingFields, Problem, Split

_MAX_STATEMENTS_TEXT = 20_000
# Draws in a row that bring nothing new before a pool counts as used up.
_PATIENCE = 400


class Source:
    """Distinct generated problems of one split and one number of people, drawn in a fixed order.

    Held-out problems have distinct statements, and a structure recurs only when no unused one turns up any more;
    training problems are drawn as they come and differ in names or statements.
    """

    def __init__(self, people: int, split: Split, seed: int, *, compound: float, depth: int) -> None:
        self.people, self.split, self.compound, self.depth = people, split, compound, depth
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
        puzzle, structure = generate_with_key(
            self.rng, people=self.people, compound=self.compound, depth=self.depth, split=self.split
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


def _data(names: Sequence[str], solution: Sequence[bool], statements: Sequence[Statement] | None) -> dict[str, Any]:
    return {
        "names": list(names),
        "solution": list(solution),
        "statements": None if statements is None else [_as_list(statement) for statement in statements],
    }


def puzzle_of(problem: Problem) -> KKPuzzle:
    """The puzzle of a problem that has statements."""
    data = problem.data
    statements = tuple(_as_statement(statement) for statement in data["statements"])
    return KKPuzzle(tuple(data["names"]), statements, tuple(data["solution"]))


def _as_list(statement: Statement) -> list[Any]:
    return [_as_list(part) if isinstance(part, tuple) else part for part in statement]


def _as_statement(value: list[Any]) -> Statement:
    return tuple(_as_statement(part) if isinstance(part, list) else part for part in value)


def problem_from(fields: Any, where: str) -> Problem:
    """The problem of a row's fields question (or quiz), names, solution and, if any, statements; see docs/tasks/kk.md.

    Its id is ``where`` unless the row has one. Raises UserError naming ``where`` and what is wrong.
    """
    outcome = _parse(fields, where)
    if isinstance(outcome, str):
        raise UserError(f"{where}: {outcome}")
    return outcome


def _parse(record: Any, where: str) -> Problem | str:
    if not isinstance(record, dict):
        return "not a JSON object; a row is {question, names, solution, ...}"
    question = record.get("question", record.get("quiz"))
    missing = [key for key in ("names", "solution") if key not in record]
    if question is None:
        missing.insert(0, "question")
    if missing:
        raise MissingFields(where, missing, "a row needs question (or quiz), names and solution", record)
    names, solution = record["names"], record["solution"]
    if not isinstance(question, str) or not question.strip():
        return "question must be text"
    if not _is_list_of(names, str) or not all(name.strip() for name in names) or len(set(names)) != len(names):
        return "names must be a list of different names"
    if not MIN_PEOPLE <= len(names) <= MAX_PEOPLE:
        return f"{len(names)} names; allowed are {MIN_PEOPLE} to {MAX_PEOPLE}"
    if not _is_list_of(solution, bool) or len(solution) != len(names):
        return "solution must be a list of true (knight) and false (knave), one for each name"
    statements = None
    if record.get("statements") is not None:
        statements = _statements(record["statements"], len(names))
        if statements is None:
            return "statements cannot be read; see the row format in docs/tasks/kk.md"
        if solve(statements) != [tuple(solution)]:
            return "statements do not have the stated solution as their only one"
    return Problem(
        id=str(record.get("id", where)),
        question=question,
        data=_data(names, solution, statements),
        subgroup=f"{len(names)} people",
        structure=structure_key(statements) if statements is not None else None,
    )


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _statements(value: Any, people: int) -> tuple[Statement, ...] | None:
    if isinstance(value, str):
        if len(value) > _MAX_STATEMENTS_TEXT:
            return None
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    if not isinstance(value, list | tuple) or len(value) != people:
        return None
    parsed = [_statement(item, people, depth=0) for item in value]
    return None if any(item is None for item in parsed) else tuple(item for item in parsed if item is not None)


def _statement(value: Any, people: int, depth: int) -> Statement | None:
    if not isinstance(value, list | tuple) or not value or depth > 20:
        return None
    kind, *parts = value
    if kind in ("telling-truth", "lying"):
        valid = len(parts) == 1 and type(parts[0]) is int and 0 <= parts[0] < people
        return (kind, parts[0]) if valid else None
    arity = {"not": 1, "and": 2, "or": 2, "->": 2, "<=>": 2}.get(kind) if isinstance(kind, str) else None
    if arity != len(parts):
        return None
    inner = [_statement(part, people, depth + 1) for part in parts]
    return None if any(part is None for part in inner) else (kind, *inner)
