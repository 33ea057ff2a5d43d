"""Countdown puzzles: an exhaustive solver in exact arithmetic, a generator, and worked responses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.data import hash_split
from rlvr_cli.tasks.problem import Split

MIN_NUMBERS, MAX_NUMBERS = 2, 6

# The ranges of the public set.
LOWEST, HIGHEST = 1, 99
TARGETS = (10, 100)
_MOST_DRAWS = 100_000

# A rational number in lowest terms, as (numerator, positive denominator): many times faster than Fraction.
Ratio = tuple[int, int]

# A number, or an operator with its two operands.
Expression = int | tuple[str, "Expression", "Expression"]

_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True)
class CountdownPuzzle:
    nums: tuple[int, ...]
    target: int


def puzzle_key(puzzle: CountdownPuzzle) -> str:
    """Return the puzzle as text, independent of the order of its numbers; the key of its split."""
    return f"{' '.join(map(str, sorted(puzzle.nums)))} = {puzzle.target}"


def split_for(puzzle: CountdownPuzzle) -> Split:
    return hash_split(puzzle_key(puzzle))


def generate_countdown(
    rng: random.Random, *, numbers: int, split: Split, largest: int = HIGHEST, targets: tuple[int, int] = TARGETS
) -> CountdownPuzzle:
    """Draw a solvable puzzle of ``split``; ``targets`` is inclusive. Raises UserError if 100,000 draws yield none."""
    for _ in range(_MOST_DRAWS):
        nums = tuple(rng.randint(LOWEST, largest) for _ in range(numbers))
        puzzle = CountdownPuzzle(nums, rng.randint(*targets))
        if split_for(puzzle) == split and next(find_solutions(puzzle), None) is not None:
            return puzzle
    raise UserError(
        f"task.targets: almost no target from {targets[0]} to {targets[1]} can be reached with {numbers} numbers of "
        f"{LOWEST} to {largest}: {_MOST_DRAWS:,} draws yielded no {split} puzzle. Set task.largest or task.targets."
    )


def find_solutions(puzzle: CountdownPuzzle) -> Iterator[Expression]:
    """Yield expressions that reach the target with every number once, by exhaustive search.

    Complete: none only if the puzzle has no solution. Subexpressions of equal numbers and value are used once.
    """
    numbers = tuple(sorted(puzzle.nums))
    seen = set()
    for half, rest in _partitions(numbers):
        first, second = _reachable_values(half), _reachable_values(rest)
        # Iterate over the smaller side, look up the larger one.
        small, large = (first, second) if len(first) <= len(second) else (second, first)
        for value, solution in small.items():
            missing = list(_complements(value, puzzle.target))
            if not value[0] and not puzzle.target:  # zero times anything
                missing.append(("*", next(iter(large)), True))
            for operator, needed, known_first in missing:
                if needed in large:
                    other = large[needed]
                    expression = (operator, solution, other) if known_first else (operator, other, solution)
                    if expression not in seen:
                        seen.add(expression)
                        yield expression


def evaluate(expression: Expression) -> Fraction:
    """Return the exact value. Raises ZeroDivisionError."""
    if isinstance(expression, int):
        return Fraction(expression)
    operator, lhs, rhs = expression
    a, b = evaluate(lhs), evaluate(rhs)
    if operator == "/":
        return a / b
    return {"+": a + b, "-": a - b, "*": a * b}[operator]


def format_expression(expression: Expression) -> str:
    """Return the expression as text with minimal parentheses: `(79 - 17) / 60`."""
    if isinstance(expression, int):
        return str(expression)
    operator, lhs, rhs = expression
    first, second = format_expression(lhs), format_expression(rhs)
    if isinstance(lhs, tuple) and _RANK[lhs[0]] < _RANK[operator]:
        first = f"({first})"
    # After a minus or a division an operand of equal rank keeps its parentheses.
    if isinstance(rhs, tuple) and _RANK[rhs[0]] < _RANK[operator] + (operator in "-/"):
        second = f"({second})"
    return f"{first} {operator} {second}"


@lru_cache(maxsize=1024)
def _reachable_values(numbers: tuple[int, ...]) -> dict[Ratio, Expression]:
    """Return every value reachable with each number used once, with an expression."""
    if len(numbers) == 1:
        return {(numbers[0], 1): numbers[0]}
    values: dict[Ratio, Expression] = {}
    for half, rest in _partitions(numbers):
        for (p, q), first in _reachable_values(half).items():
            for (r, s), second in _reachable_values(rest).items():
                a, b, denominator = p * s, r * q, q * s
                values.setdefault(_reduce(a + b, denominator), ("+", first, second))
                values.setdefault(_reduce(a - b, denominator), ("-", first, second))
                values.setdefault(_reduce(b - a, denominator), ("-", second, first))
                values.setdefault(_reduce(p * r, denominator), ("*", first, second))
                if b:
                    values.setdefault(_reduce(a, b), ("/", first, second))
                if a:
                    values.setdefault(_reduce(b, a), ("/", second, first))
    return values


def _partitions(numbers: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    indices = range(1, len(numbers))
    for size in range(len(numbers) - 1):
        for joined in itertools.combinations(indices, size):
            group = (numbers[0], *(numbers[index] for index in joined))
            yield group, tuple(numbers[index] for index in indices if index not in joined)


def _complements(value: Ratio, target: int) -> Iterator[tuple[str, Ratio, bool]]:
    """Yield (operator, x, whether ``value`` is the left operand) for every x that reaches the target."""
    p, q = value
    yield "+", (target * q - p, q), True
    yield "-", (p - target * q, q), True
    yield "-", (p + target * q, q), False
    if p:
        yield "*", _reduce(target * q, p), True
        yield "/", _reduce(target * p, q), False
        if target:
            yield "/", _reduce(p, target * q), True


def _reduce(numerator: int, denominator: int) -> Ratio:
    divisor = gcd(numerator, denominator)
    if denominator < 0:
        divisor = -divisor
    return numerator // divisor, denominator // divisor


_VARIANTS = 4
_MOST_TRIES = 4


def write_solutions(puzzle: CountdownPuzzle, rng: random.Random) -> Iterator[str]:
    """Yield correct responses to a prompt that ends in ``<think>``; the last has no failed attempts."""
    ways = list(itertools.islice(find_solutions(puzzle), _VARIANTS))
    for way in ways:
        tries = [_write_miss(puzzle, rng) for _ in range(rng.randint(1, _MOST_TRIES))]
        yield _write_response(puzzle, [*tries, *_write_steps(way)], way)
    if ways:
        shortest = min(ways, key=lambda way: len(format_expression(way)))
        yield _write_response(puzzle, _write_steps(shortest), shortest)


def _write_response(puzzle: CountdownPuzzle, sentences: list[str], way: Expression) -> str:
    return f" {' '.join(sentences)} That is {puzzle.target}. </think>\n<answer> {format_expression(way)} </answer>"


def _write_steps(expression: Expression) -> list[str]:
    if isinstance(expression, int):
        return []
    operator, lhs, rhs = expression
    calculation = f"{_format_operand(lhs)} {operator} {_format_operand(rhs)} = {evaluate(expression)}."
    return [*_write_steps(lhs), *_write_steps(rhs), calculation]


def _format_operand(expression: Expression) -> str:
    text = str(evaluate(expression))
    return f"({text})" if "/" in text or text.startswith("-") else text


def _write_miss(puzzle: CountdownPuzzle, rng: random.Random) -> str:
    while True:
        nums = rng.sample(puzzle.nums, len(puzzle.nums))
        expression: Expression = nums[0]
        for number in nums[1:]:
            expression = (rng.choice("+-*"), expression, number)
        value = evaluate(expression)
        if value != puzzle.target:
            return f"{format_expression(expression)} = {value}, not {puzzle.target}."
