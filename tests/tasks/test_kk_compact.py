"""The lab's compact form: prompts, traces, answers, and noise that is seeded and recoverable."""

import random

import pytest

from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.tasks.kk_puzzles import generate_puzzle


def drawn(count, **settings):
    rng = random.Random(1)
    return [generate_puzzle(rng, people=2 + i % 4, **settings) for i in range(count)]


@pytest.mark.parametrize("settings", [{"depth": 1}, {"depth": 2, "compound": 0.9}])
def test_clean_traces_are_right_and_use_known_words_only(settings):
    known = set(compact.vocabulary())
    for puzzle in drawn(120, **settings):
        response = compact.write_trace(puzzle, random.Random(2))
        assert compact.has_valid_format(response)
        assert compact.parse_answer(response) == puzzle.solution
        assert set(response.split()) | set(compact.write_prompt(puzzle).split()) <= known


@pytest.mark.parametrize(
    ("response", "answer", "ok"),
    [
        ("KN </think> <answer> KN </answer>", (True, False), True),
        ("KN </think> <answer> KN", None, False),
        ("KN </think> <answer> KN KK </answer>", None, True),
        ("KN </think> <answer> no </answer>", None, True),
        ("KN </think> </think> <answer> KN </answer>", (True, False), False),
        ("<answer> KN </answer> </think>", (True, False), False),
        ("<think> </think> <answer> KN </answer>", (True, False), False),
        ("</think> <answer> KN </answer> <answer> NN </answer>", (False, False), False),
        ("", None, False),
    ],
)
def test_answers_and_form_are_read_apart(response, answer, ok):
    assert compact.parse_answer(response) == answer
    assert compact.has_valid_format(response) is ok
