"""The K&K solver, the English and the loader against a reader of the English text and its own solver by clauses."""

import random
from collections import Counter
from pathlib import Path

import pytest

from rlvr_cli.tasks import kk_puzzles as puzzles
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.kk_puzzles import KKPuzzle
from tests.tasks import kk_reader

PUBLIC = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "kk"
PEOPLE = range(2, 9)


def as_claim(statement, names):
    """The project's statement in the reader's words."""
    kind, *parts = statement
    if kind in ("telling-truth", "lying"):
        return kk_reader.Claim("is", name=names[parts[0]], knight=kind == "telling-truth")
    word = {"->": "if", "<=>": "iff"}.get(kind, kind)
    return kk_reader.Claim(word, tuple(as_claim(part, names) for part in parts))


def disagreements(count, seed):
    """Of ``count`` puzzles of the generator: text, statements, solution and solver, each against the reader's view."""
    rng = random.Random(seed)
    wrong = []
    for number in range(count):
        people = PEOPLE[number % len(PEOPLE)]
        depth = 1 + number // len(PEOPLE) % 3
        puzzle = puzzles.generate_puzzle(rng, people=people, compound=rng.choice((0.3, 0.6, 1.0)), depth=depth)
        text = puzzles.english(puzzle, rng)
        names, claims = kk_reader.read_puzzle(text)
        said = [as_claim(statement, puzzle.names) for statement in puzzle.statements]
        found = kk_reader.solutions(names, claims)
        if (
            tuple(names) != puzzle.names
            or [claims[name] for name in names] != said
            or found != [puzzle.solution]
            or found != puzzles.solve(puzzle.statements)
        ):
            wrong.append(text)
    return wrong


def compared_at_random(count, seed):
    """Statements that were not chosen to have one solution: all solutions of both, and how many there were."""
    rng = random.Random(seed)
    seen = Counter()
    for number in range(count):
        people = PEOPLE[number % len(PEOPLE)]
        statements = tuple(
            puzzles.random_statement(
                rng, people=people, speaker=speaker, compound=rng.random(), depth=rng.randint(1, 3)
            )
            for speaker in range(people)
        )
        puzzle = KKPuzzle(tuple(rng.sample(puzzles.NAMES, people)), statements, (True,) * people)
        found = kk_reader.solutions(*kk_reader.read_puzzle(puzzles.english(puzzle, rng)))
        assert found == sorted(puzzles.solve(statements)), puzzle
        seen[min(len(found), 2)] += 1
    return seen


def test_generated_puzzles_of_two_to_eight_people_read_and_solve_alike():
    assert disagreements(420, seed=1) == []


def test_the_solver_finds_every_solution_where_there_are_none_or_several():
    seen = compared_at_random(350, seed=2)
    assert min(seen[0], seen[1], seen[2]) > 20, seen


def test_the_public_rows_say_in_english_what_their_statements_and_solutions_say():
    """The loader's names, statements and solution, read from the question alone."""
    if not PUBLIC.is_dir():
        pytest.skip("public K&K rows not found next to the checkout (../shared/data/kk)")
    task = KnightsAndKnaves(data=str(PUBLIC), people=dict.fromkeys(PEOPLE, 1 / 7), style="logic_rl")
    rows = task.load("test")
    assert len(rows) == 700
    for row in rows:
        names, claims = kk_reader.read_puzzle(row.question)
        assert names == row.data["names"], row.id
        assert [claims[name] for name in names] == [as_claim(s, names) for s in row.data["statements"]], row.id
        assert kk_reader.solutions(names, claims) == [tuple(row.data["solution"])], row.id
        roles = zip(names, row.data["solution"], strict=True)
        answer = ", ".join(f"{name} is a {'knight' if role else 'knave'}" for name, role in roles)
        assert task.judge(row, f"r</think><answer>{answer}</answer>").reward == 3.0, row.id


def test_the_reader_is_no_yes_man():
    """What it must not let pass: a text that is no puzzle, and a solver's answer that is not the text's."""
    puzzle = puzzles.generate_puzzle(random.Random(3), people=3)
    text = puzzles.english(puzzle, random.Random(4))
    for broken in (
        text.replace(" is a ", " is no "),
        text.replace("You meet 3", "You meet 4"),
        text.replace(" So who is a knight", ""),
        text.replace(puzzle.names[0], puzzle.names[1]),
    ):
        with pytest.raises(kk_reader.Unreadable):
            kk_reader.read_puzzle(broken)
    names = ["Ann", "Bob"]
    liar = kk_reader.Claim("is", name="Bob", knight=False)
    assert kk_reader.solutions(names, {"Ann": liar, "Bob": kk_reader.Claim("and", (liar, liar))}) == []
    both = {name: kk_reader.Claim("is", name=name) for name in names}
    assert len(kk_reader.solutions(names, both)) == 4
