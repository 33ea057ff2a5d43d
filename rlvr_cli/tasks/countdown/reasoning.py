"""A worked solution of Countdown in English: some tries that miss the target, then the steps that reach it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from rlvr_cli.tasks.countdown.puzzles import Expression, Puzzle, text_of, value_of
from rlvr_cli.tasks.countdown.puzzles import solutions as found

_VARIANTS = 4
_MOST_TRIES = 4


def solutions(puzzle: Puzzle, rng: random.Random) -> Iterator[str]:
    """Right responses to a prompt that ends in ``<think>``; the last has no try that misses. None if unsolvable."""
    ways = list(itertools.islice(found(puzzle), _VARIANTS))
    for way in ways:
        tries = [_miss(puzzle, rng) for _ in range(rng.randint(1, _MOST_TRIES))]
        yield _response(puzzle, [*tries, *_steps(way)], way)
    if ways:
        shortest = min(ways, key=lambda way: len(text_of(way)))
        yield _response(puzzle, _steps(shortest), shortest)


def _response(puzzle: Puzzle, sentences: list[str], way: Expression) -> str:
    return f" {' '.join(sentences)} That is {puzzle.target}. </think>\n<answer> {text_of(way)} </answer>"


def _steps(expression: Expression) -> list[str]:
    if isinstance(expression, int):
        return []
    operator, left, right = expression
    calculation = f"{_shown(left)} {operator} {_shown(right)} = {value_of(expression)}."
    return [*_steps(left), *_steps(right), calculation]


def _shown(expression: Expression) -> str:
    text = str(value_of(expression))
    return f"({text})" if "/" in text or text.startswith("-") else text


def _miss(puzzle: Puzzle, rng: random.Random) -> str:
    """A true sentence on an expression that does not reach the target."""
    while True:
        nums = rng.sample(puzzle.nums, len(puzzle.nums))
        expression: Expression = nums[0]
        for number in nums[1:]:
            expression = (rng.choice("+-*"), expression, number)
        value = value_of(expression)
        if value != puzzle.target:
            return f"{text_of(expression)} = {value}, not {puzzle.target}."
