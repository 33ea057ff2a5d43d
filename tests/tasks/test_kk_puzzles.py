"""Puzzles: one solution each, splits disjoint up to renaming; test_kk_independent.py compares the solver."""

import itertools
import random

import pytest

from rlvr_cli.tasks import kk_puzzles as puzzles


def renamed(statement, order):
    if statement[0] in puzzles.LITERALS:
        return (statement[0], order[statement[1]])
    return (statement[0], *(renamed(part, order) for part in statement[1:]))


def shuffled(statements, order):
    """The same puzzle with person `i` called `order[i]`."""
    rows = [()] * len(statements)
    for speaker, statement in enumerate(statements):
        rows[order[speaker]] = renamed(statement, order)
    return tuple(rows)


@pytest.mark.parametrize("people", range(2, 9))
def test_generated_puzzles_have_one_solution_and_stay_in_their_split(people):
    rng = random.Random(people)
    for split in ("train", "dev", "test"):
        for depth in (1, 2):
            puzzle = puzzles.generate_puzzle(rng, people=people, compound=0.7, depth=depth, split=split)
            tried = [
                roles
                for roles in itertools.product((False, True), repeat=people)
                if all(puzzles.holds(s, roles) == roles[i] for i, s in enumerate(puzzle.statements))
            ]
            assert tried == [puzzle.solution]
            assert puzzles.split_of(puzzles.structure_key(puzzle.statements)) == split


@pytest.mark.parametrize("people", [2, 3, 4, 5])
def test_structure_key_is_the_same_exactly_under_renaming(people):
    """Against brute force: the smallest text over all renamings."""
    rng = random.Random(people)

    def smallest(statements):
        return min(
            puzzles._relabelled(shuffled(statements, order), range(people))
            for order in itertools.permutations(range(people))
        )

    by_key = {}
    for _ in range(60):
        statements = puzzles.generate_puzzle(rng, people=people, compound=0.4).statements
        order = rng.sample(range(people), people)
        key = puzzles.structure_key(statements)
        assert key == puzzles.structure_key(shuffled(statements, order))
        assert by_key.setdefault(key, smallest(statements)) == smallest(statements)
    assert len(set(by_key.values())) == len(by_key)


@pytest.mark.parametrize(
    "statements",
    [
        [("telling-truth", (i + 1) % 8) for i in range(8)],
        [("lying", i ^ 1) for i in range(8)],
        [("telling-truth", 0)] * 8,
        [("and", ("telling-truth", (i + 1) % 4 + i // 4 * 4), ("lying", (i + 2) % 4 + i // 4 * 4)) for i in range(8)],
        [("telling-truth", i) for i in range(8)],
    ],
)
def test_structure_key_handles_symmetric_puzzles_of_eight(statements):
    rng = random.Random(0)
    keys = {puzzles.structure_key(shuffled(statements, rng.sample(range(8), 8))) for _ in range(20)}
    assert len(keys) == 1


def test_operand_order_and_double_negation_do_not_make_a_new_structure():
    def key(claim):
        return puzzles.structure_key([claim, ("telling-truth", 0)])

    a, b = ("telling-truth", 0), ("lying", 1)
    assert key(("and", a, b)) == key(("and", b, a))
    assert key(("not", ("lying", 1))) == key(("telling-truth", 1))
    assert key(("->", a, b)) != key(("->", b, a))


def test_split_shares():
    rng = random.Random(0)
    keys = {puzzles.structure_key(puzzles.generate_puzzle(rng, people=5).statements) for _ in range(5)}
    assert {puzzles.split_of(key) for key in keys} == {"train"}
    counts = {"train": 0, "dev": 0, "test": 0}
    for number in range(8000):
        counts[puzzles.split_of(str(number))] += 1
    assert counts["dev"] == pytest.approx(1000, abs=120) and counts["test"] == pytest.approx(1000, abs=120)
