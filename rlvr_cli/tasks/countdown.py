"""The Countdown task: generated or loaded puzzles, TinyZero's prompts, two judging rules.

The row format is in docs/tasks/countdown.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.section import Contradiction, FromList
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks import countdown_compact as compact
from rlvr_cli.tasks.base import Data, RuleKey
from rlvr_cli.tasks.countdown_puzzles import (
    HIGHEST,
    MAX_NUMBERS,
    MIN_NUMBERS,
    TARGETS,
    CountdownPuzzle,
    generate_countdown,
    puzzle_key,
    write_solutions,
)
from rlvr_cli.tasks.countdown_rules import read_paper, read_strict
from rlvr_cli.tasks.data import hash_split
from rlvr_cli.tasks.hub import HubTable
from rlvr_cli.tasks.problem import DataSet, DataSplit, MissingFields, Problem, Split, Verdict, generated_set
from rlvr_cli.tasks.prompts import chat_prompt, has_template, leading_bos, prefill_think
from rlvr_cli.tasks.shares import Share, StratifiedTask, SumToOne, quotas

Target = Annotated[int, Field(ge=0, le=1_000_000)]

FORMAT, ANSWER = 0.1, 0.9
REASONS = ("correct", "wrong", "wrong_numbers", "no_answer", "bad_format", "too_long")

# Consecutive draws without a new puzzle after which generation fails.
_PATIENCE = 1000
_LARGEST = 10**9
# Rows of TinyZero's splits in `Jiayi-Pan/Countdown-Tasks-3to4`.
_HUB_TRAIN, _HUB_TEST = 327_680, 1_024

# TinyZero's prompts (`examples/data_preprocess/countdown.py`, templates `base` and `qwen-instruct`), mistakes included.
SYSTEM = (
    "You are a helpful assistant. You first thinks about the reasoning process in the mind and then provides the user "
    "with the answer."
)
BASE_SYSTEM = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer."
)
ASSISTANT_PREFIX = "Let me solve this step by step.\n<think>"


class Countdown(StratifiedTask):
    """Countdown: reach a target with given numbers."""

    sets: ClassVar = {
        "countdown": DataSet(
            "Countdown with 3 and 4 numbers (TinyZero's train and test splits).",
            {"train": "countdown/train", "test": "countdown/test"},
            "Jiayi-Pan/Countdown-Tasks-3to4",
            "none stated; TinyZero's code is Apache-2.0",
            size=1024,
            keys={"numbers": {3: 0.5, 4: 0.5}},
            length=(1024, "ours: the length of TinyZero's script"),
        ),
        "countdown-gen": generated_set("Generated Countdown."),
    }
    reasons: ClassVar = REASONS
    problem_keys: ClassVar = ("numbers", "largest", "targets")
    shares_key: ClassVar = "numbers"
    size_field: ClassVar = "nums"
    json_columns: ClassVar = ("nums", "target")
    bypasses_template: ClassVar = {"style": ("tiny_zero_base", "compact")}

    name: Literal["countdown"] = Field("countdown", description="countdown = reach a target with given numbers.")
    numbers: Annotated[dict[Annotated[int, Field(ge=3, le=4)], Share], SumToOne] = Field(
        {3: 0.5, 4: 0.5},
        min_length=1,
        description="Count of numbers (3 or 4) -> share of the problems; the shares sum to 1.",
    )
    largest: Annotated[int, Field(ge=1, le=10_000)] = Field(
        HIGHEST, description="Largest number in generated problems."
    )
    targets: Annotated[tuple[Target, Target], FromList] = Field(
        TARGETS, description="The smallest and the largest target of generated problems."
    )
    style: Literal["auto", "tiny_zero", "tiny_zero_base", "compact"] = Field(
        "auto",
        description="Prompt format: tiny_zero (TinyZero's, as chat turns if the model has a chat template), "
        "tiny_zero_base (TinyZero's for base models, plain text), compact (the lab's words), auto = the model's, "
        "compact or tiny_zero.",
    )
    data: Data = "countdown-gen"
    reward: Literal["tiny_zero", "zero_one"] = Field(
        "tiny_zero",
        description="tiny_zero = TinyZero's: 0.1 for an answer block plus 0.9 for a correct answer; zero_one = 1 for a "
        "correct answer, else 0.",
    )
    rule: RuleKey = "paper"

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if self.targets[0] > self.targets[1]:
            least, largest = self.targets
            yield Contradiction(
                ("task.targets",), f"task.targets must be [smallest, largest]; got [{least}, {largest}]"
            )

    def for_model(self, style: str) -> Self:
        """Resolve the style; the lab's compact one has words for three numbers."""
        of_model = "compact" if style == "compact" else "tiny_zero"
        chosen = self.style if self.style != "auto" else of_model
        if chosen == "compact" and set(self.numbers) != {compact.NUMBERS}:
            raise UserError(
                f"task.numbers: the compact style supports {compact.NUMBERS} numbers; got {max(self.numbers)}. Set "
                f"task.numbers={{{compact.NUMBERS}: 1.0}}, or use a model that reads English (task.style=tiny_zero)."
            )
        return self.replace(style=chosen)

    @classmethod
    def restrict_keys(cls, keys: Mapping[str, Any], style: str | None) -> Mapping[str, Any]:
        return {**keys, "numbers": {compact.NUMBERS: 1.0}, "style": "compact"} if style == "compact" else keys

    @property
    def reward_range(self) -> tuple[float, float]:
        return 0.0, FORMAT + ANSWER

    @property
    def prompt_tokens(self) -> int:
        return 8 if self.style == "compact" else 256

    @property
    def format_range(self) -> tuple[float, float] | None:
        return (0.0, FORMAT) if self.reward == "tiny_zero" else None

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """Return the problem of a row's fields `nums` and `target`; the default `id` is ``where``. Raises UserError."""
        missing = [name for name in ("nums", "target") if name not in fields]
        if missing:
            raise MissingFields(where, missing, "a row needs nums (the numbers) and target", fields)
        nums, target = fields["nums"], fields["target"]
        if not isinstance(nums, list) or not all(type(n) is int and 0 <= n <= _LARGEST for n in nums):
            raise UserError(f"{where}: nums must be a list of whole numbers from 0 to {_LARGEST}")
        if not MIN_NUMBERS <= len(nums) <= MAX_NUMBERS:
            raise UserError(f"{where}: nums must have {MIN_NUMBERS} to {MAX_NUMBERS} numbers; got {len(nums)}")
        if type(target) is not int or abs(target) > _LARGEST:
            raise UserError(f"{where}: target must be a whole number from -{_LARGEST} to {_LARGEST}")
        return _make_problem(CountdownPuzzle(tuple(nums), target), str(fields.get("id", where)))

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """Return the prompt, ending in ``<think>``; without a chat template in the format for base models."""
        if self.style == "compact":
            return compact.write_prompt(_puzzle(problem))
        question = problem.question
        if self.style == "tiny_zero_base" or not has_template(tokenizer):
            return f"{leading_bos(tokenizer)}{BASE_SYSTEM}\nUser: {question}\nAssistant: {ASSISTANT_PREFIX}"
        with_system = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f" {question}"}]
        user_only = [{"role": "user", "content": f"{SYSTEM}\n{question}"}]
        options = self.chat_template_kwargs
        text = chat_prompt(tokenizer, with_system, user_only, alternative="task.style=tiny_zero_base", options=options)
        return prefill_think(text, ASSISTANT_PREFIX)

    def solutions(self, problem: Problem) -> Iterator[str]:
        """Yield worked responses: failed attempts, then the steps to the target. Raises UserError without any."""
        rng = random.Random(stream_seed(0, "countdown", "solutions", problem.id))
        puzzle = _puzzle(problem)
        responses = compact.write_solutions(puzzle) if self.style == "compact" else write_solutions(puzzle, rng)
        first = next(responses, None)
        if first is None:
            in_words = " in the compact style" if self.style == "compact" else ""
            raise UserError(
                f"task.data: problem {problem.id} ({problem.structure}) has no solution{in_words}. Remove its row, or "
                "set method.data to worked solutions."
            )
        yield first
        yield from responses

    def judge(self, problem: Problem, response: str, *, truncated: bool = False) -> Verdict:
        read = read_strict if self.rule == "strict" else read_paper
        reading = read(response, problem.data["nums"], problem.data["target"])
        correct = reading.outcome == "correct"
        components = {"answer": float(correct)}
        if self.reward == "tiny_zero":
            answered = reading.outcome != "bad_format"
            components = {"format": FORMAT if answered else 0.0, "answer": ANSWER if correct else 0.0}
        unread = reading.outcome in ("bad_format", "no_answer")
        reason = "too_long" if truncated and unread else reading.outcome
        return Verdict(sum(components.values()), components, correct, reading.expression, reason)

    def load(self, split: DataSplit) -> list[Problem]:
        problems = super().load(split)
        unwritable = (row for row in problems if not compact.is_writable(row.data["nums"], row.data["target"]))
        if self.style == "compact" and (first := next(unwritable, None)) is not None:
            raise UserError(
                f"task.data={self.data!r}: the compact style supports whole numbers of 0 to {compact.LARGEST}; problem "
                f"{first.id} ({first.structure}) has others. Remove its row, or use a model that reads English."
            )
        return problems

    def hub_tables(self, hub_id: str, split: Split) -> list[HubTable]:
        """Return the hub's only split, train: TinyZero's train rows, then its test rows."""
        return [HubTable("train", ids="countdown", most=_HUB_TRAIN + _HUB_TEST)]

    def select_split(self, problems: list[Problem], split: Split) -> list[Problem]:
        if len(problems) < _HUB_TRAIN + _HUB_TEST:
            return [problem for problem in problems if hash_split(self.split_key(problem)) == split]
        train, test = problems[:_HUB_TRAIN], problems[_HUB_TRAIN:]
        if split == "test":
            return test
        held_out = {problem.structure for problem in test}
        return super().select_split([problem for problem in train if problem.structure not in held_out], split)

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        counts = quotas(self.numbers, count, {})
        drawn = [
            problem
            for number in sorted(counts)
            for problem in self._generate_numbers(split, number, counts[number], seed)
        ]
        return self.shuffle(drawn, split, seed)

    def _generate_numbers(self, split: Split, numbers: int, count: int, seed: int) -> list[Problem]:
        """Generate problems that are distinct up to the order of the numbers. Raises UserError if exhausted."""
        rng = random.Random(stream_seed(seed, "countdown", split, numbers))
        problems: dict[str, Problem] = {}
        idle = 0
        while len(problems) < count:
            puzzle = generate_countdown(rng, numbers=numbers, split=split, largest=self.largest, targets=self.targets)
            key = puzzle_key(puzzle)
            idle = idle + 1 if key in problems else 0
            if idle == _PATIENCE:
                raise UserError(
                    f"task.train_size: only {len(problems)} {split} puzzles of {numbers} numbers were generated, and "
                    f"{count} were requested. Request fewer."
                )
            if not idle:
                identity = text_digest(repr((puzzle.nums, puzzle.target)))[:16]
                problems[key] = _make_problem(puzzle, f"countdown-{numbers}n-{split}-{identity}")
        return list(problems.values())


def write_question(nums: Sequence[int], target: int) -> str:
    return (
        f"Using the numbers {list(nums)}, create an equation that equals {target}. You can use basic arithmetic "
        "operations (+, -, *, /) and each number can only be used once. Show your work in <think> </think> tags. And "
        "return the final answer in <answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
    )


def _make_problem(puzzle: CountdownPuzzle, identifier: str) -> Problem:
    return Problem(
        id=identifier,
        question=write_question(puzzle.nums, puzzle.target),
        data={"nums": list(puzzle.nums), "target": puzzle.target},
        subgroup=f"{len(puzzle.nums)} numbers",
        structure=puzzle_key(puzzle),
    )


def _puzzle(problem: Problem) -> CountdownPuzzle:
    return CountdownPuzzle(tuple(problem.data["nums"]), problem.data["target"])
