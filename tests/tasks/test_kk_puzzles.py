"""Puzzles: the solver against brute force, splits disjoint up to renaming; their English is in data/kk-gen."""

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


def brute_force(statements):
    every = itertools.product((False, True), repeat=len(statements))
    return [roles for roles in every if all(puzzles.holds(s, roles) == roles[i] for i, s in enumerate(statements))]


def test_what_a_statement_says_of_two_people():
    """Knight and knight, knight and knave, knave and knight, knave and knave."""
    first, second = ("telling-truth", 0), ("lying", 1)
    for statement, truths in (
        (first, (True, True, False, False)),
        (second, (False, True, False, True)),
        (("not", second), (True, False, True, False)),
        (("and", first, second), (False, True, False, False)),
        (("or", first, second), (True, True, False, True)),
        (("->", first, second), (False, True, True, True)),
        (("<=>", first, second), (False, True, True, False)),
    ):
        assert tuple(puzzles.holds(statement, r) for r in itertools.product((True, False), repeat=2)) == truths


@pytest.mark.parametrize("people", [2, 3, 5, 8])
def test_the_solver_misses_nothing_and_generated_puzzles_have_one_solution_and_stay_in_their_split(people):
    rng = random.Random(people)
    for depth in (1, 2, 3):
        for _ in range(12):
            speakers = range(people)
            statements = tuple(
                puzzles.random_statement(rng, people=people, speaker=speaker, compound=0.6, depth=depth)
                for speaker in speakers
            )
            assert sorted(puzzles.solve(statements)) == brute_force(statements), statements
        for split in ("train", "dev", "test"):
            puzzle = puzzles.generate_puzzle(rng, people=people, compound=0.7, depth=depth, split=split)
            assert brute_force(puzzle.statements) == [puzzle.solution]
            assert puzzles.hash_split(puzzles.structure_key(puzzle.statements)) == split


@pytest.mark.parametrize("people", [2, 3, 4, 5])
def test_structure_key_is_the_same_exactly_under_renaming(people):
    """Against brute force: the smallest text over all renamings."""
    rng = random.Random(people)

    def smallest(statements):
        return min(
            puzzles._relabel(shuffled(statements, order), range(people))
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
    assert {puzzles.hash_split(key) for key in keys} == {"train"}
    counts = {"train": 0, "dev": 0, "test": 0}
    for number in range(8000):
        counts[puzzles.hash_split(str(number))] += 1
    assert counts["dev"] == pytest.approx(1000, abs=120) and counts["test"] == pytest.approx(1000, abs=120)
