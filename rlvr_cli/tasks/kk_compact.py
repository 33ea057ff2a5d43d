"""The compact language of the lab's tiny model for Knights & Knaves with 2 to 5 people.

    prompt     A: CN iff BN B: AN or CN C: not BK ? <think>
    response   NKK A: CN f BN f no NKN A: CN t BN f B: AN t CN t C: not BK f </think> <answer> NKN </answer>

People are the letters A to E in speaking order; `BK` means that B is a knight, `CN` that C is a knave. The reasoning
guesses an assignment (`NKK`), checks each speaker (`A: CN f BN f`: both literals of A's claim are false under the
guess), writes `no` and guesses again at the first contradiction, and answers when every claim is consistent.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence

from rlvr_cli.core.section import Probability, Section
from rlvr_cli.tasks.answers import last_tagged
from rlvr_cli.tasks.kk_puzzles import LITERALS, KKPuzzle, Statement, holds, people_in

LETTERS = "ABCDE"
MAX_PEOPLE = len(LETTERS)
_WORDS = {"and": "and", "or": "or", "->": "implies", "<=>": "iff"}
_TAGS = ("</think>", "<answer>", "</answer>")


class Noise(Section):
    """Probabilities of errors in a trace; all zero = a clean trace.

    `atom`: the truth value of a literal is flipped. `verdict`: the outcome of a check is flipped. `implication`: a
    check reads `implies` as `and`. `stop`: after a passed check the others are skipped.
    """

    atom: Probability = 0.0
    verdict: Probability = 0.0
    implication: Probability = 0.0
    stop: Probability = 0.0


CLEAN = Noise()


def vocabulary() -> list[str]:
    words = ["?", "(", ")", "not", *_WORDS.values()]
    words += [f"{letter}:" for letter in LETTERS]
    words += [letter + role for letter in LETTERS for role in "KN"]
    words += ["<think>", *_TAGS, "no", "t", "f"]
    for people in range(2, MAX_PEOPLE + 1):
        words += ["".join(roles) for roles in itertools.product("KN", repeat=people)]
    return words


def _claim_words(statement: Statement, nested: bool = False) -> list[str]:
    kind = statement[0]
    if kind in LITERALS:
        return [LETTERS[statement[1]] + ("K" if kind == "telling-truth" else "N")]
    if kind == "not":
        return ["not", *_claim_words(statement[1], nested=True)]
    words = [*_claim_words(statement[1], nested=True), _WORDS[kind], *_claim_words(statement[2], nested=True)]
    return ["(", *words, ")"] if nested else words


def write_prompt(puzzle: KKPuzzle) -> str:
    """Return the prompt, ending in `<think>`. Raises ValueError for more people than letters."""
    if len(puzzle.statements) > MAX_PEOPLE:
        raise ValueError(f"a puzzle must have 2 to {MAX_PEOPLE} people; got {len(puzzle.statements)}")
    words: list[str] = []
    for letter, statement in zip(LETTERS, puzzle.statements, strict=False):
        words += [f"{letter}:", *_claim_words(statement)]
    return " ".join([*words, "?", "<think>"])


def roles_text(roles: Sequence[bool]) -> str:
    """Return `KNK` for (knight, knave, knight)."""
    return "".join("K" if role else "N" for role in roles)


def _literals(statement: Statement) -> Iterator[Statement]:
    if statement[0] in LITERALS or (statement[0] == "not" and statement[1][0] in LITERALS):
        yield statement
    else:
        for operand in statement[1:]:
            yield from _literals(operand)


def _evaluate(statement: Statement, values: Iterator[bool], misread: bool) -> bool:
    kind = statement[0]
    if kind in LITERALS or (kind == "not" and statement[1][0] in LITERALS):
        return next(values)
    if kind == "not":
        return not _evaluate(statement[1], values, misread)
    lhs, rhs = (_evaluate(operand, values, misread) for operand in statement[1:])
    if kind == "and" or (kind == "->" and misread):
        return lhs and rhs
    return {"or": lhs or rhs, "->": not lhs or rhs, "<=>": lhs == rhs}[kind]


def next_guess(guess: tuple[bool, ...], last: int) -> tuple[bool, ...]:
    """Return the guess after a contradiction; ``last`` is the last person involved in the failed check.

    Increments the binary number (K = 0, N = 1) of the people up to ``last``, wrapping to all K, and resets the people
    after it to K. So no consistent assignment is skipped, and each recurs if a wrong step passed over it.
    """
    roles = [*guess[: last + 1], *([True] * (len(guess) - last - 1))]
    person = last
    while person >= 0 and not roles[person]:
        roles[person] = True
        person -= 1
    if person >= 0:
        roles[person] = False
    return tuple(roles)


def write_solutions(puzzle: KKPuzzle, rng: random.Random) -> Iterator[str]:
    """Yield the clean trace of every first guess, in random order."""
    guesses = list(itertools.product((True, False), repeat=len(puzzle.statements)))
    rng.shuffle(guesses)
    for guess in guesses:
        yield write_trace(puzzle, rng, first=guess)


def _answer_words(roles: Sequence[bool]) -> list[str]:
    return ["</think>", "<answer>", roles_text(roles), "</answer>"]


def write_trace(
    puzzle: KKPuzzle, rng: random.Random, noise: Noise = CLEAN, first: tuple[bool, ...] | None = None
) -> str:
    """Return a response: guesses, checks, answer. Clean traces end in the correct answer.

    The first guess is `first`, or random; `next_guess` follows a contradiction.
    """
    people = range(len(puzzle.statements))
    guess = first or tuple(rng.random() < 0.5 for _ in people)
    words: list[str] = []
    while True:
        words.append(roles_text(guess))
        for speaker in people:
            statement = puzzle.statements[speaker]
            values = [holds(literal, guess) != (rng.random() < noise.atom) for literal in _literals(statement)]
            words.append(f"{LETTERS[speaker]}:")
            for literal, value in zip(_literals(statement), values, strict=True):
                words += [*_claim_words(literal), "t" if value else "f"]
            says = _evaluate(statement, iter(values), misread=rng.random() < noise.implication)
            if (says == guess[speaker]) == (rng.random() < noise.verdict):
                words.append("no")
                guess = next_guess(guess, max(speaker, *people_in(statement)))
                break
            if speaker + 1 < len(people) and rng.random() < noise.stop:
                return " ".join([*words, *_answer_words(guess)])
        else:
            return " ".join([*words, *_answer_words(guess)])


def write_guess(puzzle: KKPuzzle, rng: random.Random) -> str:
    """Return a response without reasoning, with a random answer."""
    return " ".join(_answer_words([rng.random() < 0.5 for _ in puzzle.statements]))


def parse_answer(response: str) -> tuple[bool, ...] | None:
    """Return the roles in the last answer block (True = knight), or None if it is not a word of K and N."""
    block = last_tagged(response) or ""
    return tuple(letter == "K" for letter in block) if re.fullmatch(r"[KN]{2,8}", block) else None


def has_valid_format(response: str) -> bool:
    """Return whether `</think>`, `<answer>` and `</answer>` occur once each in this order, without `<think>`."""
    if "<think>" in response or any(response.count(tag) != 1 for tag in _TAGS):
        return False
    return response.index(_TAGS[0]) < response.index(_TAGS[1]) < response.index(_TAGS[2])
