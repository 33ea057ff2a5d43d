"""Word problems: exact answers by a second reading of the English, the lab's compact form, noise, rows."""

import re
from collections import Counter

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.math import STORIES, MathTask
from rlvr_cli.tasks.math_stories import (
    LARGEST,
    MAX_STEPS,
    Step,
    Story,
    from_row,
    to_row,
)

EXAMPLE = Story(
    "Ada",
    14,
    (Step("Ben", "half", "Ada", 2), Step("Cleo", "and", "Ben", other="Ada"), Step("Dan", "fewer", "Cleo", 6)),
    "Cleo",
)
TASK = MathTask(data=STORIES)


def answer_of(question):
    """What a story in English comes to, read sentence by sentence. For text of this project only."""
    *sentences, asked = re.split(r"(?<=[.?]) ", question)
    has = {}
    for sentence in sentences:
        who, _, said = sentence.rstrip(".").partition(" has ")
        words = said.split()
        if words[1:] and words[0].isdigit() and len(words) == 2:
            has[who] = int(words[0])
        elif said.startswith("half"):
            assert has[words[-1]] % 2 == 0
            has[who] = has[words[-1]] // 2
        elif "together" in said:
            has[who] = has[words[3]] + has[words[5]]
        elif "times" in said:
            has[who] = int(words[0]) * has[words[-1]]
        else:
            has[who] = has[words[-1]] + int(words[0]) * (1 if words[1] == "more" else -1)
    assert all(1 <= value <= LARGEST for value in has.values())
    return has[re.search(r"does (\w+) have", asked)[1]]


def test_answers_against_a_reading_of_the_english():
    for problem in MathTask(data=STORIES, steps=dict.fromkeys(range(1, MAX_STEPS + 1), 1 / MAX_STEPS)).problems(
        "train", 600, 4
    ):
        assert problem.data["answer"] == str(answer_of(problem.question)), problem.question


def test_sets_are_repeatable_with_the_shares_asked_for_and_held_out_chains_are_new():
    task = MathTask(data=STORIES, steps={2: 0.25, 5: 0.75})
    sets = {split: task.problems(split, 800, 7) for split in ("train", "dev", "test")}
    assert task.problems("dev", 200, 7) == sets["dev"][:200]
    assert 150 < Counter(problem.subgroup for problem in sets["dev"])["2 steps"] < 250
    chains = {split: {problem.structure for problem in problems} for split, problems in sets.items()}
    assert not chains["train"] & (chains["dev"] | chains["test"]) and not chains["dev"] & chains["test"]


@pytest.mark.parametrize("style", ["boxed", "compact", "compact_tag"])
@pytest.mark.parametrize("rule", ["paper", "strict"])
def test_worked_solutions_are_right(style, rule):
    task = TASK.replace(style=style, rule=rule)
    problems = task.problems("train", 60, 3)
    verdicts = task.judge_many(problems, [next(task.solutions(one)) for one in problems], [False] * 60)
    assert all(verdict.correct for verdict in verdicts)
    shifted = [*problems[1:], problems[0]]
    verdicts = task.judge_many(problems, [next(task.solutions(one)) for one in shifted], [False] * 60)
    same = [one.data["answer"] == other.data["answer"] for one, other in zip(problems, shifted, strict=True)]
    assert [verdict.correct for verdict in verdicts] == same, "the solution of another problem"


def test_a_story_that_cannot_be_is_refused_with_its_place():
    row = {"question": "How many?", "answer": "3"}
    for story in (
        [],
        [["Ada", 1], ["Ada"]],
        [["Ada", "x"], ["Ben", "more", "Ada", 2], ["Ben"]],
        [["Ada", 1], ["Ben", "and", "Ada", None], ["Ben"]],
        [["Ada", 1], ["Ben", "more", "Cleo", 2], ["Ben"]],
        [["Ada", 1], ["Ben", "plus", "Ada", 2], ["Ben"]],
        [["Ada", 1], ["Ben", "half", "Ada", 0], ["Ben"]],
        [["Ada", 1], ["Ben", "more", "Ada", 2], ["Dan"]],
    ):
        with pytest.raises(UserError, match=r"rows\.jsonl:7: story must be"):
            TASK.row_problem({**row, "story": story}, "rows.jsonl:7")
    with pytest.raises(UserError, match=r"rows\.jsonl:7: answer must be the story's, 21; got 3"):
        TASK.row_problem({**row, "story": to_row(EXAMPLE)}, "rows.jsonl:7")
    with pytest.raises(UserError, match=r"task\.reward=gtpo rewards"):
        MathTask(data=STORIES, reward="gtpo").for_model("compact")


def test_rows_keep_their_story():
    (problem,) = TASK.problems("train", 1, 0)
    assert TASK.row_problem(problem.fields, "rows.jsonl:1").data == problem.data
    assert from_row(to_row(EXAMPLE), "here") == EXAMPLE
    without = TASK.row_problem({**problem.fields, "story": "Once upon a time"}, "rows.jsonl:1")
    assert "story" not in without.data
