"""The compact language of the lab's tiny model for Countdown with three numbers.

    prompt     8 13 17 = 32 ? <think>
    response   13 8 : 21 5 104 x 17 : 15 49 x x x no 17 8 : 25 9 136 x 13 : 19 45 x x x no 17 13 : 30 4 x x 8 : 24 40 4
               </think> <answer> ( 17 - 13 ) * 8 </answer>

The search has a round for each pair of numbers, in the order of the prompt. A round writes the pair, larger number
first, and its values by `+ - * /`; then the third number c and the value p that each last operation needs: `p + c`,
`p - c`, `p * c`, `p / c` and `c - p`. `x` stands for any value but a whole number of 0 to 144. The search ends at the
first needed value that the pair has; a round without one ends in `no`. It misses about 1 in 200 problems with numbers
up to 20.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from rlvr_cli.core.section import Probability, Section
from rlvr_cli.tasks.countdown_puzzles import CountdownPuzzle

NUMBERS = 3
ROUNDS = 3
PASSES = 3
LARGEST = 144
_PAIR = "+-*/"
# The last operation, with the third number; `from`: the third number minus the pair.
_LAST = (*_PAIR, "from")
_RANDOM_OPERATORS = "+-*"


class Noise(Section):
    """Probabilities of errors in a trace; all zero = a clean trace.

    `guess`: answer with a random expression, without reasoning. `quit`: after a failed round, answer with a random
    expression of its numbers. `leap`: the same after a needed value that the pair lacks. `miss`: overlook a needed
    value that the pair has. `slip`: a random operation in the answer. `value`: a value off by 1, 2 or 10.
    """

    guess: Probability = 0.0
    quit: Probability = 0.0
    leap: Probability = 0.0
    miss: Probability = 0.0
    slip: Probability = 0.0
    value: Probability = 0.0


CLEAN = Noise()


def vocabulary() -> list[str]:
    words = [*_PAIR, "(", ")", "=", ":", "?", "x", "no", "<think>", "</think>", "<answer>", "</answer>"]
    return [*words, *map(str, range(LARGEST + 1))]


def is_writable(nums: Sequence[int], target: int) -> bool:
    return len(nums) == NUMBERS and all(0 <= number <= LARGEST for number in (*nums, target))


def write_prompt(puzzle: CountdownPuzzle) -> str:
    """Return the prompt, ending in `<think>`, also for numbers outside the vocabulary."""
    return f"{' '.join(map(str, puzzle.nums))} = {puzzle.target} ? <think>"


def list_rounds(puzzle: CountdownPuzzle) -> list[tuple[int, int, int]]:
    """Return the pair, larger number first, and the third number of each round."""
    first, second, third = puzzle.nums
    orders = ((first, second, third), (first, third, second), (second, third, first))
    return [(max(a, b), min(a, b), c) for a, b, c in orders]


def find_solving_round(puzzle: CountdownPuzzle) -> int | None:
    """Return the round, from 1, in which the search finds a solution, or None."""
    for number, (a, b, c) in enumerate(list_rounds(puzzle), start=1):
        values = [value for value in _pair_values(a, b) if value is not None]
        if any(needed in values for needed in _needed_values(puzzle.target, c)):
            return number
    return None


def write_trace(puzzle: CountdownPuzzle, rng: random.Random, noise: Noise = CLEAN) -> str:
    """Return a response: rounds, then the answer. A clean one is correct if the search finds a solution.

    After three failed rounds the search restarts, for at most three passes.
    """
    turns = list_rounds(puzzle)
    if rng.random() < noise.guess:
        return _write_answer([], _random_expression(*rng.choice(turns), rng))
    words: list[str] = []
    for a, b, c in turns * PASSES:
        values = [_perturb(value, rng, noise) for value in _pair_values(a, b)]
        words += [str(a), str(b), ":", *map(_format_value, values), str(c), ":"]
        for last, exact in zip(_LAST, _needed_values(puzzle.target, c), strict=True):
            needed = _perturb(exact, rng, noise)
            words.append(_format_value(needed))
            if needed is not None and needed in values and rng.random() >= noise.miss:
                of_pair = _PAIR[values.index(needed)]
                of_pair = rng.choice(_RANDOM_OPERATORS) if rng.random() < noise.slip else of_pair
                last = rng.choice(_RANDOM_OPERATORS) if rng.random() < noise.slip else last
                return _write_answer(words, _format_expression(a, b, c, of_pair, last))
            if rng.random() < noise.leap:
                return _write_answer(words, _random_expression(a, b, c, rng))
        if rng.random() < noise.quit:
            break
        words.append("no")
    return _write_answer(words, _random_expression(a, b, c, rng))


def write_solutions(puzzle: CountdownPuzzle) -> Iterator[str]:
    if is_writable(puzzle.nums, puzzle.target) and find_solving_round(puzzle) is not None:
        yield write_trace(puzzle, random.Random(0))


def _pair_values(a: int, b: int) -> list[int | None]:
    """Return the values of a pair by `+ - * /`; None = `x`."""
    return [_mask_unknown(value) for value in (a + b, a - b, a * b, a // b if b and a % b == 0 else None)]


def _needed_values(target: int, c: int) -> list[int | None]:
    """Return p for which `p + c`, `p - c`, `p * c`, `p / c` and `c - p` equal the target; None = `x`."""
    factor = target // c if c and target % c == 0 else None
    return [_mask_unknown(value) for value in (target - c, target + c, factor, target * c if c else None, c - target)]


def _mask_unknown(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= LARGEST else None


def _perturb(value: int | None, rng: random.Random, noise: Noise) -> int | None:
    if rng.random() >= noise.value:
        return value
    if value is None:
        return rng.randrange(60)
    return rng.choice([near for step in (1, 2, 10) for near in (value - step, value + step) if 0 <= near <= LARGEST])


def _format_value(value: int | None) -> str:
    return "x" if value is None else str(value)


def _format_expression(a: int, b: int, c: int, of_pair: str, last: str) -> str:
    pair = f"( {a} {of_pair} {b} )"
    return f"{c} - {pair}" if last == "from" else f"{pair} {last} {c}"


def _random_expression(a: int, b: int, c: int, rng: random.Random) -> str:
    return _format_expression(a, b, c, rng.choice(_RANDOM_OPERATORS), rng.choice(_RANDOM_OPERATORS))


def _write_answer(words: list[str], expression: str) -> str:
    return " ".join([*words, "</think>", "<answer>", expression, "</answer>"])
