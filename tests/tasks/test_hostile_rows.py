"""Rows whose values JSON can spell and a task cannot use: each is refused with its line, or means what it says."""

import json

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.gsm8k import GSM8K
from rlvr_cli.tasks.hitab import HiTab
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.math import MathTask

HALF = "\ud800"
WORDS = {"question": "How many?", "answer": "3"}
KK = {"question": "Who is what?", "names": ["Ann", "Bob"], "solution": [True, False]}
TABLE = {"question": "b of a?", "table": [["", "a"], ["b", "3"]], "answer": [3]}


def problems(kind, tmp_path, *lines):
    path = tmp_path / "rows.test.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return kind(data=str(path)).problems("test", 100, 0)


@pytest.mark.parametrize("digits", [309, 4300])
def test_a_whole_number_beyond_floats_is_an_answer_of_mathematics(digits, tmp_path):
    gold = "1" + "7" * (digits - 1)
    row = f'{{"question": "How many?", "answer": {gold}}}'
    (problem,) = problems(MathTask, tmp_path, row)
    assert problem.data["answer"] == gold
    with pytest.raises(UserError, match=r"rows\.test\.jsonl:1: answer .* is not a number"):
        problems(GSM8K, tmp_path, row)
    if digits == 309:
        task = MathTask()
        assert task.judge(problem, rf"\boxed{{{gold}}}").correct
        assert not task.judge(problem, rf"\boxed{{{gold[:-1]}8}}").correct


@pytest.mark.parametrize("kind", [MathTask, GSM8K])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
def test_numbers_that_are_not_finite_are_refused(kind, number, tmp_path):
    with pytest.raises(UserError, match=r"rows\.test\.jsonl:2: .*(no JSON|larger than any float)"):
        problems(kind, tmp_path, WORDS, f'{{"question": "?", "answer": {number}}}')
    with pytest.raises(UserError, match="answer"):
        kind().problem_from({"question": "?", "answer": float(number)}, "here")


@pytest.mark.parametrize("depth", [2, 700])
def test_lists_inside_lists_are_no_answer(depth, tmp_path):
    nested = "[" * depth + "1" + "]" * depth
    with pytest.raises(UserError, match=r"rows\.test\.jsonl:1: "):
        problems(MathTask, tmp_path, f'{{"question": "?", "answer": {nested}}}')


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (MathTask, {**WORDS, "id": HALF}),
        (MathTask, {**WORDS, "question": f"How {HALF}?"}),
        (MathTask, {**WORDS, "answer": HALF}),
        (MathTask, {**WORDS, "level": HALF}),
        (GSM8K, {**WORDS, "question": HALF}),
        (Countdown, {"nums": [1, 2, 3], "target": 6, "id": HALF}),
        (KnightsAndKnaves, {**KK, "names": ["Ann", f"Bob{HALF}"]}),
        (HiTab, {**TABLE, "table": [["", "a"], ["b", HALF]]}),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_with_its_line(kind, row, tmp_path):
    with pytest.raises(UserError, match=r"rows\.test\.jsonl:1: \\ud800 is half of a surrogate pair"):
        problems(kind, tmp_path, row)


def test_half_of_a_surrogate_pair_in_a_table_beside_the_rows(tmp_path):
    (tmp_path / "tables.jsonl").write_text(json.dumps({"id": 1, "texts": [["", HALF], ["b", "3"]]}) + "\n")
    with pytest.raises(UserError, match=r"tables\.jsonl:1: \\ud800"):
        problems(HiTab, tmp_path, {"question": "?", "table_id": 1, "answer": [3]})


def test_a_whole_surrogate_pair_is_a_character(tmp_path):
    (problem,) = problems(MathTask, tmp_path, r'{"question": "\ud83c\udf4e + \ud83c\udf4e?", "answer": "2"}')
    assert problem.question == "🍎 + 🍎?"


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (MathTask, WORDS),
        (GSM8K, WORDS),
        (Countdown, {"nums": [1, 2, 3], "target": 6}),
        (KnightsAndKnaves, KK),
    ],
)
def test_an_id_of_null_is_none(kind, row, tmp_path):
    without = problems(kind, tmp_path, row, row)
    assert problems(kind, tmp_path, {"id": None, **row}, {"id": None, **row}) == without
    assert len({problem.id for problem in without}) == 2


@pytest.mark.parametrize("place", ["countdown/test.jsonl", "countdown/x.test.jsonl"])
def test_show_takes_a_test_problem_where_there_is_no_other(place, tmp_path, capsys):
    path = tmp_path / place
    path.parent.mkdir()
    path.write_text(json.dumps({"nums": [1, 2, 3], "target": 6}) + "\n")
    data = ["task.data=countdown", f"task.data_dir={tmp_path}"] if path.stem == "test" else [f"task.data={path}"]
    assert run(["tasks", "show", "countdown", *data]) == 0
    assert "[1, 2, 3]" in capsys.readouterr().out
    assert run(["tasks", "show", "countdown", f"task.data={tmp_path / 'none.jsonl'}"]) == 2
