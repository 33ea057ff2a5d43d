"""Knights & Knaves puzzles: statements, exhaustive solver, generator, structure, English text."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rlvr_cli.tasks.data import hash_split
from rlvr_cli.tasks.problem import Split

Statement = tuple[Any, ...]
"""Nested tuples as in the public data: ("telling-truth", i), ("lying", i), ("not", s), ("and", a, b), ("or", a, b),
("->", a, b), ("<=>", a, b); `i` is a person, who makes the statement at position `i`."""

MIN_PEOPLE, MAX_PEOPLE = 2, 8
LITERALS = ("telling-truth", "lying")
BINARY = ("and", "or", "->", "<=>")
_COMMUTATIVE = frozenset({"and", "or", "<=>"})

_ALL_NAMES = (
    "James Daniel Charlotte Owen Aiden Chloe Jack Scarlett Liam Benjamin Emily Grace Amelia Mason Riley "
    "Victoria Alexander Ella Luke Ava Emma Sebastian Lucas Jackson Logan Avery Penelope Lily Abigail Sofia "
    "Ethan Henry Elizabeth Aurora Mia Samuel Oliver William Michael Jacob Sophia Matthew Joseph Harper "
    "Isabella Evelyn David Zoey Aria Olivia Noah"
)
NAMES = tuple(_ALL_NAMES.split())


@dataclass(frozen=True)
class KKPuzzle:
    """A puzzle with a unique solution; `solution[i]` is True if person `i` is a knight."""

    names: tuple[str, ...]
    statements: tuple[Statement, ...]
    solution: tuple[bool, ...]


def holds(statement: Statement, roles: Sequence[bool]) -> bool:
    return bool(_truth_mask(statement, roles, 1))


def _truth_mask(statement: Statement, knights: Sequence[int], every: int) -> int:
    """Return the assignments in which a statement is true (bit mask); ``knights``: those in which each is one."""
    kind = statement[0]
    if kind == "telling-truth":
        return knights[statement[1]]
    if kind == "lying":
        return every ^ knights[statement[1]]
    if kind == "not":
        return every ^ _truth_mask(statement[1], knights, every)
    lhs, rhs = (_truth_mask(operand, knights, every) for operand in statement[1:])
    if kind == "and":
        return lhs & rhs
    if kind == "or":
        return lhs | rhs
    if kind == "->":
        return every ^ lhs | rhs
    if kind == "<=>":
        return every ^ lhs ^ rhs
    raise ValueError(f"unknown statement kind {kind!r}; known: telling-truth, lying, not, and, or, ->, <=>")


def people_in(statement: Statement) -> Iterator[int]:
    """Yield the people in a statement, in order, with repeats."""
    if statement[0] in LITERALS:
        yield statement[1]
    else:
        for operand in statement[1:]:
            yield from people_in(operand)


@cache
def _knight_masks(people: int) -> tuple[int, ...]:
    return tuple(sum(1 << a for a in range(1 << people) if a >> person & 1) for person in range(people))


def solve(statements: Sequence[Statement]) -> list[tuple[bool, ...]]:
    """Return every assignment in which knights' statements are true and knaves' false, by bit masks over all 2^n."""
    people = len(statements)
    knights = _knight_masks(people)
    every = (1 << (1 << people)) - 1
    consistent = every
    for speaker, statement in enumerate(statements):
        consistent &= every ^ _truth_mask(statement, knights, every) ^ knights[speaker]
    return [tuple(bool(a >> person & 1) for person in range(people)) for a in range(1 << people) if consistent >> a & 1]


def _draw_literal(rng: random.Random, people: int, speaker: int) -> Statement:
    while True:
        kind, person = rng.choice(LITERALS), rng.randrange(people)
        if (kind, person) != ("lying", speaker):  # "I am a knave" is a paradox
            return (kind, person)


def random_statement(rng: random.Random, *, people: int, speaker: int, compound: float, depth: int) -> Statement:
    if depth < 1 or rng.random() >= compound:
        literal = _draw_literal(rng, people, speaker)
        return ("not", literal) if rng.random() < 1 / 3 else literal
    kind = rng.choice(BINARY)
    while True:
        lhs, rhs = (
            _draw_literal(rng, people, speaker)
            if depth == 1
            else random_statement(rng, people=people, speaker=speaker, compound=compound, depth=depth - 1)
            for _ in range(2)
        )
        if lhs != rhs:
            return (kind, lhs, rhs)


def generate_puzzle(
    rng: random.Random, *, people: int, compound: float = 0.6, depth: int = 1, split: Split = "train"
) -> KKPuzzle:
    return generate_with_key(rng, people=people, compound=compound, depth=depth, split=split)[0]


def generate_with_key(
    rng: random.Random, *, people: int, compound: float, depth: int, split: Split
) -> tuple[KKPuzzle, str]:
    """Generate a puzzle of `split` with a unique solution; return it with its :func:`structure_key`.

    ``people``: 2 to 8. ``compound``: share of compound statements. ``depth``: nesting of compound statements, >= 1.
    """
    while True:
        statements = tuple(
            random_statement(rng, people=people, speaker=speaker, compound=compound, depth=depth)
            for speaker in range(people)
        )
        solutions = solve(statements)
        if len(solutions) == 1 and hash_split(key := structure_key(statements)) == split:
            return KKPuzzle(tuple(rng.sample(NAMES, people)), statements, solutions[0]), key


def _encode(statement: Statement, labels: Sequence[str], positive: bool = True) -> str:
    """Encode a statement over `labels`, invariant to operand order of and/or/iff and to double negation."""
    kind = statement[0]
    if kind == "not":
        return _encode(statement[1], labels, not positive)
    if kind in LITERALS:
        return ("T" if (kind == "telling-truth") == positive else "L") + labels[statement[1]]
    operands = [_encode(operand, labels) for operand in statement[1:]]
    if kind in _COMMUTATIVE:
        operands.sort()
    return f"{'' if positive else '!'}({kind} {' '.join(operands)})"


def _encode_views(
    statements: Sequence[Statement], mentioned: Sequence[Sequence[int]], colours: Sequence[int]
) -> list[list[str]]:
    """Encode each speaker's statement (row) over colours, with the speaker and a person (column) marked."""
    views = []
    for speaker, statement in enumerate(statements):
        labels = [f"{colour} " for colour in colours]
        labels[speaker] = f"{colours[speaker]}s "
        # A person who is not mentioned changes nothing.
        row = [_encode(statement, labels)] * len(statements)
        for person in mentioned[speaker]:
            unmarked, labels[person] = labels[person], f"{labels[person][:-1]}* "
            row[person] = _encode(statement, labels)
            labels[person] = unmarked
        views.append(row)
    return views


def _refine(statements: Sequence[Statement], colours: list[int]) -> list[int]:
    """Refine colours until people with different statements by or about them differ.

    New colours keep the order of the old ones, so the result is invariant to the numbering of people.
    """
    people = range(len(statements))
    mentioned = [tuple(set(people_in(statement))) for statement in statements]
    while True:
        views = _encode_views(statements, mentioned, colours)
        signatures = [
            (
                colours[person],
                views[person][person],
                tuple(sorted((colours[other], views[other][person]) for other in people if other != person)),
            )
            for person in people
        ]
        rank = {signature: number for number, signature in enumerate(sorted(set(signatures)))}
        refined = [rank[signature] for signature in signatures]
        # Stable: all colours are unique, or none was split.
        if len(rank) in (len(set(colours)), len(people)):
            return refined
        colours = refined


def _relabel(statements: Sequence[Statement], numbers: Sequence[int]) -> str:
    rows, labels = [""] * len(statements), [f"{number} " for number in numbers]
    for speaker, statement in enumerate(statements):
        rows[numbers[speaker]] = _encode(statement, labels)
    return "|".join(rows)


def _smallest_form(statements: Sequence[Statement], colours: list[int]) -> str:
    colours = _refine(statements, colours)
    people = range(len(statements))
    cells: dict[int, list[int]] = {}
    for person in people:
        cells.setdefault(colours[person], []).append(person)
    open_cells = [cell for _, cell in sorted(cells.items()) if len(cell) > 1]
    if not open_cells:
        return _relabel(statements, colours)
    identity = _relabel(statements, list(people))
    tried: list[int] = []
    forms = []
    for person in open_cells[0]:
        swaps = []
        for other in tried:
            numbers = list(people)
            numbers[person], numbers[other] = other, person
            swaps.append(_relabel(statements, numbers) == identity and colours[person] == colours[other])
        if any(swaps):  # interchangeable with an earlier person, so of the same form
            continue
        tried.append(person)
        forms.append(_smallest_form(statements, [2 * c - (p == person) for p, c in zip(people, colours, strict=True)]))
    return min(forms)


def structure_key(statements: Sequence[Statement]) -> str:
    """Return a canonical form of the statements: equal if and only if they differ by a permutation of people.

    Invariant to operand order of and/or/iff and double negation. Canonical labelling by colour refinement and
    individualisation; interchangeable people are tried once.
    """
    return _smallest_form(statements, [0] * len(statements))


_TEMPLATES = (
    '{name} said, "{claim}."',
    "{name} said that {claim}.",
    "{name} told you that {claim}.",
    "{name} expressed that {claim}.",
    '{name} commented, "{claim}".',
    '{name} remarked, "{claim}".',
    '{name} stated, "{claim}".',
    '{name} noted, "{claim}".',
    '{name} asserted: "{claim}".',
    '{name} was heard saying, "{claim}".',
    'According to {name}, "{claim}".',
    'In {name}\'s words: "{claim}".',
    'In a statement by {name}: "{claim}".',
    'As {name} put it, "{claim}".',
    '"{claim}," {name} declared.',
    '"{claim}," {name} claimed.',
    '"{claim}," {name} mentioned.',
    '"{claim}" - {name}.',
)


def claim_text(statement: Statement, names: Sequence[str], nested: bool = False) -> str:
    """Return a statement in the English of the public data set; ``nested``: a compound one in brackets."""
    kind = statement[0]
    if kind in LITERALS:
        return f"{names[statement[1]]} is a {'knight' if kind == 'telling-truth' else 'knave'}"
    if kind == "not":
        inner = statement[1]
        if inner[0] in LITERALS:
            return f"{names[inner[1]]} is not a {'knight' if inner[0] == 'telling-truth' else 'knave'}"
        return f"it is not the case that {claim_text(inner, names, nested=True)}"
    lhs, rhs = (claim_text(operand, names, nested=True) for operand in statement[1:])
    text = {
        "and": f"{lhs} and {rhs}",
        "or": f"{lhs} or {rhs}",
        "->": f"If {lhs} then {rhs}",
        "<=>": f"{lhs} if and only if {rhs}",
    }[kind]
    return f"({text})" if nested else text


def write_question(puzzle: KKPuzzle, rng: random.Random) -> str:
    """Return the puzzle in the English of the public data set; `rng` chooses the phrasing of each report."""
    names = puzzle.names
    reports = " ".join(
        rng.choice(_TEMPLATES).format(name=name, claim=claim_text(statement, names))
        for name, statement in zip(names, puzzle.statements, strict=True)
    )
    return (
        "A very special island is inhabited only by knights and knaves. Knights always tell the truth, and knaves "
        f"always lie. You meet {len(names)} inhabitants: {', '.join(names[:-1])}, and {names[-1]}. {reports} "
        "So who is a knight and who is a knave?"
    )
