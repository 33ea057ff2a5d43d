"""The Knights & Knaves task: generated or loaded puzzles, two prompt styles, two judging rules."""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.section import Probability
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.tasks import kk_solutions
from rlvr_cli.tasks.base import Data
from rlvr_cli.tasks.data import hash_split
from rlvr_cli.tasks.hub import HubTable
from rlvr_cli.tasks.kk_puzzles import (
    MAX_PEOPLE,
    MIN_PEOPLE,
    KKPuzzle,
    Statement,
    generate_with_key,
    solve,
    structure_key,
    write_question,
)
from rlvr_cli.tasks.kk_rules import (
    ANSWER_RIGHT,
    ANSWER_UNREADABLE,
    FORMAT_RIGHT,
    FORMAT_WRONG,
    REASONS,
    read_compact,
    read_logic_rl,
    read_roles,
    roles_verdict,
)
from rlvr_cli.tasks.problem import DataSet, DataSplit, MissingFields, Problem, Split, Verdict, generated_set
from rlvr_cli.tasks.prompts import chat_prompt, has_template, leading_bos, prefill_think
from rlvr_cli.tasks.shares import Share, StratifiedTask, SumToOne, quotas

# Consecutive draws without a new problem after which a pool counts as exhausted.
_PATIENCE = 400
_PEOPLE = re.compile(r"(\d)ppl\.")

# The Logic-RL prompt: AR-Lopti (Yang et al. 2025, appendix C.1.1) and Logic-RL's `examples/data_preprocess/kk.py`.
# Wording, double space and missing spaces are those of the public prompt.
SYSTEM = (
    "You are a helpful assistant. The assistant first thinks about the reasoning process in the mind and then provides "
    "the user with the answer. The reasoning process and answer are enclosed within <think> </think> and<answer> "
    "</answer> tags, respectively, i.e., <think> reasoning process here </think><answer> answer here </answer>.  Now "
    "the user asks you to solve a logical reasoning problem. After thinking, when you finally reach a conclusion, "
    "clearly state the identity of each character within <answer> </answer> tags. i.e., <answer> (1) Zoey is a "
    "knight\n(2) ... </answer>.\n"
)

BASE_SYSTEM = (
    "The user asks a question, and the Assistant solves it.The assistant first thinks about the reasoning process in "
    "the mind and then provides the user with the final answer. The reasoning process and answer are enclosed within "
    "<think> </think> and <answer> </answer> tags, respectively, i.e., <think> reasoning process here </think>"
    "<answer> answer here </answer>. Now the user asks you to solve a logical reasoning problem. After thinking, when "
    "you finally reach a conclusion, clearly state the identity of each character within <answer> </answer> tags. List "
    "the identity of each person one by one, for example, <answer> (1) Zoey is a knight\n(2) Oliver is a knight\n"
    "(3)... </answer>.\n\n"
)

ASSISTANT_PREFIX = "<think>"


class KnightsAndKnaves(StratifiedTask):
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
        "kk-gen": generated_set("Generated Knights & Knaves."),
    }
    reasons: ClassVar = REASONS
    problem_keys: ClassVar = ("people", "compound", "depth")
    shares_key: ClassVar = "people"
    size_field: ClassVar = "names"
    all_rows_keys: ClassVar = {"people": dict.fromkeys(range(2, 9), 1 / 7)}
    json_columns: ClassVar = ("names", "solution", "statements")
    bypasses_template: ClassVar = {"style": ("compact",)}

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
        1, description="Nesting depth of claims in a compound statement; 1 = plain claims."
    )
    style: Literal["auto", "logic_rl", "compact"] = Field(
        "auto",
        description="Prompt format: logic_rl (the paper's English), compact (the lab's words), auto = the model's.",
    )
    data: Data = "kk-gen"
    reward: Literal["logic_rl", "strict", "zero_one"] = Field(
        "logic_rl",
        description="logic_rl = the Logic-RL paper's score; strict = judges meaning, not surface; zero_one = 1 if "
        "correct by logic_rl, else 0.",
    )

    def for_model(self, style: str) -> Self:
        """Resolve the style. Raises UserError if the compact one lacks letters for the people."""
        chosen = self.style if self.style != "auto" else style
        if chosen == "compact" and max(self.people) > compact.MAX_PEOPLE:
            raise UserError(
                f"task.people: the compact style supports at most {compact.MAX_PEOPLE} people; got {max(self.people)}. "
                f"Set task.people up to {compact.MAX_PEOPLE}, or use a model that reads English (task.style=logic_rl)."
            )
        return self.replace(style=chosen)

    @classmethod
    def restrict_keys(cls, keys: Mapping[str, Any], style: str | None) -> Mapping[str, Any]:
        people = keys.get("people")
        if style != "compact" or not isinstance(people, Mapping):
            return keys
        fitting = [number for number in people if number <= compact.MAX_PEOPLE]
        return {**keys, "people": {number: 1 / len(fitting) for number in fitting}}

    @classmethod
    def rule_override(cls, rule: str) -> tuple[str, str]:
        return "reward", "logic_rl" if rule == "paper" else rule

    @property
    def prompt_tokens(self) -> int:
        return 24 if self.style == "compact" else 400

    @property
    def reward_range(self) -> tuple[float, float]:
        if self.reward == "zero_one":
            return 0.0, 1.0
        return FORMAT_WRONG + ANSWER_UNREADABLE, FORMAT_RIGHT + ANSWER_RIGHT

    @property
    def format_range(self) -> tuple[float, float] | None:
        return None if self.reward == "zero_one" else (FORMAT_WRONG, FORMAT_RIGHT)

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """Return the problem of a row (docs/tasks/kk.md); the default id is ``where``. Raises UserError."""
        question = fields.get("question", fields.get("quiz"))
        missing = [] if question is not None else ["question"]
        missing += [key for key in ("names", "solution") if key not in fields]
        if missing:
            raise MissingFields(where, missing, "a row needs question (or quiz), names and solution", fields)
        names, solution = fields["names"], fields["solution"]
        if not isinstance(question, str) or not question.strip():
            raise UserError(f"{where}: question must be text")
        if not _is_list_of(names, str) or not all(name.strip() for name in names) or len(set(names)) != len(names):
            raise UserError(f"{where}: names must be a list of different names")
        if not MIN_PEOPLE <= len(names) <= MAX_PEOPLE:
            raise UserError(f"{where}: names must have {MIN_PEOPLE} to {MAX_PEOPLE} entries; got {len(names)}")
        if not _is_list_of(solution, bool) or len(solution) != len(names):
            raise UserError(f"{where}: solution must be a list of true (knight) and false (knave), one per name")
        statements = None
        if fields.get("statements") is not None:
            statements = _parse_statements(fields["statements"], len(names))
            if statements is None:
                raise UserError(
                    f"{where}: statements cannot be read (`rlvr tasks generate kk -o FILE` writes such rows)"
                )
            if solve(statements) != [tuple(solution)]:
                raise UserError(f"{where}: solution must be the only solution of statements")
        return _make_problem(str(fields.get("id", where)), question, names, solution, statements)

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        if self.style == "logic_rl":
            return logic_rl_prompt(problem.question, tokenizer, self.chat_template_kwargs)
        return compact.write_prompt(puzzle_of(problem))

    def solutions(self, problem: Problem) -> Iterator[str]:
        """Derive worked solutions from the statements, in the style of the prompts. Raises UserError without any."""
        if problem.data["statements"] is None:
            raise UserError(
                f"task.data: problem {problem.id} has no `statements`, so it has no worked solution. Add them to its "
                "row, or set method.data to worked solutions."
            )
        rng = random.Random(stream_seed(0, "kk", "solutions", problem.id))
        solutions = compact.write_solutions if self.style == "compact" else kk_solutions.write_solutions
        return solutions(puzzle_of(problem), rng)

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        names, solution = problem.data["names"], problem.data["solution"]
        if self.reward == "strict":
            reading = read_roles(response, names, letters=self.style == "compact")
        elif self.style == "compact":
            reading = read_compact(response, len(names))
        else:
            reading = read_logic_rl(response, names)
        judged = roles_verdict(reading, solution, truncated=truncated)
        if self.reward == "zero_one":
            return replace(judged, parts={"answer": float(judged.correct)}, reward=float(judged.correct))
        return judged

    def load(self, split: DataSplit) -> list[Problem]:
        problems = super().load(split)
        if self.style == "compact" and any(problem.data["statements"] is None for problem in problems):
            raise UserError(f"task.data={self.data!r}: the compact style needs `statements` in every row.")
        return problems

    def belongs_to_dev(self, problem: Problem) -> bool:
        return hash_split(problem.question) == "dev"

    def file_split(self, path: Path) -> str | None:
        """Return the split of a file, or None for one of another number of people (`3ppl.test.jsonl`)."""
        number = _PEOPLE.match(path.name)
        return None if number is not None and int(number[1]) not in self.people else super().file_split(path)

    def file_name_of(self, problem: Problem, split: str) -> str:
        return f"kk/{len(problem.data['names'])}ppl.{split}.jsonl"

    def hub_tables(self, hub_id: str, split: Split) -> list[HubTable]:
        """Return the tables: a configuration per split, in which a split is a number of people."""
        config = "test" if split == "test" else "train"
        return [HubTable(f"{number}ppl", config, f"{number}ppl-{config}") for number in sorted(self.people)]

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        sources = {
            number: ProblemPool(number, split, seed, compound=self.compound, depth=self.depth) for number in self.people
        }
        available: dict[int, int] = {}
        while True:
            counts = quotas(self.people, count, available)
            for number, source in sources.items():
                if not source.fill(counts[number]):
                    available[number] = len(source.problems)
            if all(len(source.problems) >= counts[number] for number, source in sources.items()):
                break
        drawn = [problem for number, source in sources.items() for problem in source.problems[: counts[number]]]
        return self.shuffle(drawn, split, seed)


def logic_rl_prompt(question: str, tokenizer: Any, options: Mapping[str, Any] | None = None) -> str:
    """Return the Logic-RL prompt, up to the assistant's opening ``<think>``.

    System and user turns in the chat template, or a user turn with both texts for a template without system turns.
    Without a template, the format for base models, "User:... Assistant: <think>". Raises UserError if the template
    refuses the turns.
    """
    if not has_template(tokenizer):
        return f"{leading_bos(tokenizer)}{BASE_SYSTEM}User:{question}\nAssistant: {ASSISTANT_PREFIX}"
    with_system = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{question}\n"}]
    user_only = [{"role": "user", "content": f"{SYSTEM}\n{question}\n"}]
    return prefill_think(chat_prompt(tokenizer, with_system, user_only, options=options), ASSISTANT_PREFIX)


class ProblemPool:
    """A pool of distinct generated problems of a split and a number of people, in a fixed order.

    Held-out problems have distinct statements, and repeat a structure only after the unused ones are exhausted.
    Training problems differ in names or statements.
    """

    def __init__(self, people: int, split: Split, seed: int, *, compound: float, depth: int) -> None:
        self.people, self.split, self.compound, self.depth = people, split, compound, depth
        self.rng = random.Random(stream_seed(seed, "kk", split, people))
        self.problems: list[Problem] = []
        self.seen: set[Any] = set()
        self.uses: dict[str, int] = {}
        self.level = 0

    def fill(self, count: int) -> bool:
        """Draw up to ``count`` problems; return False if the pool is exhausted before."""
        idle = 0
        while len(self.problems) < count:
            idle = 0 if self._draw() else idle + 1
            if idle == _PATIENCE:
                if self.level > max(self.uses.values(), default=0):
                    return False
                self.level, idle = 2 * self.level + 1, 0
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
        question = write_question(puzzle, self.rng)
        identifier = f"kk-{self.people}ppl-{self.split}-{text_digest(question)[:16]}"
        self.problems.append(
            _make_problem(identifier, question, puzzle.names, puzzle.solution, puzzle.statements, structure)
        )
        return True


def puzzle_of(problem: Problem) -> KKPuzzle:
    names, solution = problem.data["names"], problem.data["solution"]
    statements = _parse_statements(problem.data["statements"], len(names))
    assert statements is not None
    return KKPuzzle(tuple(names), statements, tuple(solution))


def _make_problem(
    identifier: str,
    question: str,
    names: Sequence[str],
    solution: Sequence[bool],
    statements: Sequence[Statement] | None,
    structure: str | None = None,
) -> Problem:
    if statements is not None and structure is None:
        structure = structure_key(statements)
    # Lists, not tuples, as in a file's row.
    data: dict[str, Any] = {
        "names": list(names),
        "solution": list(solution),
        "statements": json.loads(json.dumps(statements)),
    }
    return Problem(identifier, question, data, f"{len(names)} people", structure)


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _parse_statements(value: Any, people: int) -> tuple[Statement, ...] | None:
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    if not isinstance(value, list | tuple) or len(value) != people:
        return None
    parsed = [statement for item in value if (statement := _parse_statement(item, people, depth=0)) is not None]
    return tuple(parsed) if len(parsed) == people else None


def _parse_statement(value: Any, people: int, depth: int) -> Statement | None:
    if not isinstance(value, list | tuple) or not value or depth > 20:
        return None
    kind, *operands = value
    if kind in ("telling-truth", "lying"):
        valid = len(operands) == 1 and type(operands[0]) is int and 0 <= operands[0] < people
        return (kind, operands[0]) if valid else None
    arity = {"not": 1, "and": 2, "or": 2, "->": 2, "<=>": 2}.get(kind) if isinstance(kind, str) else None
    if arity != len(operands):
        return None
    operands = [_parse_statement(operand, people, depth + 1) for operand in operands]
    return None if any(operand is None for operand in operands) else (kind, *operands)
