"""Rows of question and answer load from folders, files and the hub; what is wrong with a file is said with its line."""

import gzip
import json

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.gsm8k import GSM8K
from rlvr_cli.tasks.math import MathTask
from rlvr_cli.tasks.sets import has_split_mark

problem_from = MathTask().problem_from


def row(number, **changes):
    return {"id": f"row-{number}", "question": f"What is {number} + 1?", "answer": str(number + 1), **changes}


def write(path, *rows):
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


def problems(data, split, count=10_000, seed=0):
    return MathTask(data=str(data)).problems(split, count, seed)


def test_a_file_without_a_split_in_its_name_is_divided(tmp_path):
    path = write(tmp_path / "set.jsonl.gz", *map(row, range(800)))
    parts = {split: {problem.id for problem in problems(path, split)} for split in ("train", "dev", "test", "all")}
    assert parts["train"] | parts["dev"] | parts["test"] == parts["all"] and len(parts["all"]) == 800
    assert sum(map(len, parts.values())) == 1600
    assert all(60 < len(parts[split]) < 140 for split in ("dev", "test"))
    assert not has_split_mark(str(path)) and has_split_mark(str(tmp_path))


def test_files_and_folders_named_for_their_split(tmp_path):
    write(tmp_path / "train.jsonl.gz", *map(row, range(200)))
    path = write(tmp_path / "test.jsonl", *map(row, range(200, 230)))
    assert len(problems(tmp_path, "test")) == len(problems(path, "test")) == 30
    train, dev = problems(tmp_path, "train"), problems(tmp_path, "dev")
    assert len(train) + len(dev) == 200 and 10 < len(dev) < 45
    assert len(problems(tmp_path, "all")) == 230
    with pytest.raises(UserError, match="holds test problems"):
        problems(path, "train")
    assert problems(tmp_path, "test", 7) == problems(tmp_path, "test", 30)[:7]
    assert problems(tmp_path, "test", 7, seed=1) != problems(tmp_path, "test", 7)


def test_rows_of_the_public_layouts():
    where = "here"
    assert problem_from({"problem": "?", "answer": 27.0}, where).data["answer"] == "27"
    assert problem_from({"question": "?", "final_answer": ["$1$", "$2$"]}, where).data["answer"] == "$1$, $2$"
    assert problem_from({"problem": "?", "solution": r"Thus \boxed{\frac12}."}, where).data["answer"] == r"\frac12"
    dapo = {
        "prompt": [
            {
                "role": "user",
                "content": "Solve the following math problem step by step. The last line of your response should be "
                "of the form Answer: $Answer (without quotes).\n\nWhat is 2 + 2?\n\nRemember to put your answer on its "
                'own line after "Answer:".',
            }
        ],
        "reward_model": {"ground_truth": "4", "style": "rule"},
    }
    problem = problem_from(dapo, where)
    assert (problem.question, problem.data["answer"]) == ("What is 2 + 2?", "4")
    assert problem_from(row(1, level="Level 5"), where).subgroup == problem_from(row(1, level=5), where).subgroup


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ([1], "not a JSON object"),
        ({"answer": "1"}, "no field question"),
        ({"question": "?"}, "no field answer"),
        ({"question": 5, "answer": "1"}, "question must be text"),
        ({"question": "?", "answer": {"a": 1}}, "answer must be text, a number or a list"),
        ({"question": "?", "answer": "$ $"}, "answer is empty"),
        (row(0), "id 'row-0' is also that of"),
    ],
)
def test_a_malformed_row_is_named(tmp_path, line, message):
    path = write(tmp_path / "set.jsonl", row(0), line)
    with pytest.raises(UserError, match=r"set\.jsonl:2") as error:
        problems(path, "all")
    assert message in str(error.value)


def test_rows_without_an_answer_are_left_out_with_a_warning(tmp_path):
    path = write(tmp_path / "set.jsonl", row(0), row(1, answer=""), row(2))
    with pytest.warns(UserWarning, match="1 rows with an empty answer were left out"):
        assert len(problems(path, "all")) == 2


def test_what_is_not_there(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        problems(tmp_path / "nothing.jsonl", "all")
    with pytest.raises(UserError, match="no file of rows"):
        problems(tmp_path, "all")
    with pytest.raises(UserError, match="not a file of rows"):
        problems(write(tmp_path / "set.txt", "a"), "all")
    with pytest.raises(UserError, match="no train problem"):
        problems(write(tmp_path / "train.part.test.jsonl.gz"), "train")
    with pytest.raises(UserError, match="split `all` is for loaded problems"):
        MathTask().problems("all", 1, 0)


def test_hub_layouts(monkeypatch):
    asked = []

    def load_dataset(hub_id, name=None, *, split):
        asked.append((hub_id, name, split))
        if hub_id == "nobody/nothing":
            raise ValueError("unknown data set")
        return [{"question": f"{name} {number}?", "answer": f"so\n#### {number}"} for number in range(100)]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    task = GSM8K(data="openai/gsm8k")
    assert len(task.problems("test", 1000, 0)) == 100
    train, dev = task.problems("train", 1000, 0), task.problems("dev", 1000, 0)
    assert len(train) + len(dev) == 100 and asked == [
        ("openai/gsm8k", "main", split) for split in ("test", "train", "train")
    ]
    with pytest.raises(UserError, match="test problems only"):
        problems("HuggingFaceH4/MATH-500", "train")
    with pytest.raises(UserError, match="unknown data set"):
        problems("nobody/nothing", "train")
    with pytest.raises(UserError, match="local files"):
        problems("openai/gsm8k", "all")
