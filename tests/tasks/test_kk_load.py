"""Public rows load from a folder, a file or the hub; what is wrong with a file is said with its line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.tasks.sets import has_split_mark

PUBLIC = Path(__file__).parents[3] / "shared" / "data" / "kk"


def row(number: int = 0, **changes: Any) -> dict[str, Any]:
    """Ann says that Bob is a knave; Bob says that both are knaves: Ann is a knight and Bob a knave."""
    return {
        "id": f"row-{number}",
        "question": f"Puzzle {number}?",
        "names": ["Ann", "Bob"],
        "solution": [True, False],
        "statements": "(('lying', 1), ('and', ('lying', 0), ('lying', 1)))",
        **changes,
    }


def load_rows(data: str, split: Any, people: list[int]) -> list[Problem]:
    shares = {number: 1 / len(people) for number in people}
    return KnightsAndKnaves(data=data, people=shares, style="logic_rl").load(split)


TWO_SOLUTIONS = "(('lying', 1), ('lying', 0))"


def write(path: Path, *rows: Any) -> Path:
    lines = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in rows)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines, encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [row(i, statements=None) for i in range(80)]
    write(tmp_path / "2ppl.train.jsonl.gz", *rows)
    write(tmp_path / "2ppl.test.jsonl", *[row(100 + i, statements=None) for i in range(5)])
    return tmp_path


def test_a_folder_has_train_and_test_and_dev_is_an_eighth_of_train(folder: Path) -> None:
    train, dev, test = (load_rows(str(folder), split, [2]) for split in ("train", "dev", "test"))
    assert len(test) == 5
    assert len(train) + len(dev) == 80
    assert 3 <= len(dev) <= 20
    assert not {r.id for r in train} & {r.id for r in dev}


def test_dev_files_are_used_where_there_are_any(folder: Path) -> None:
    write(folder / "2ppl.dev.jsonl", row(900, statements=None))
    assert [r.id for r in load_rows(str(folder), "dev", [2])] == ["row-900"]
    assert len(load_rows(str(folder), "train", [2])) == 80


def test_a_file_named_for_its_split_serves_that_one_only(folder: Path) -> None:
    path = str(folder / "2ppl.test.jsonl")
    assert has_split_mark(path)
    assert len(load_rows(path, "test", [2])) == 5
    with pytest.raises(UserError, match="holds test problems, and train ones were requested"):
        load_rows(path, "train", [2])


def test_an_unmarked_file_is_divided_by_structure_or_taken_whole(tmp_path: Path) -> None:
    path = str(write(tmp_path / "mine.jsonl", *[row(i, statements=None) for i in range(60)]))
    assert not has_split_mark(path)
    parts = [{r.id for r in load_rows(path, split, [2])} for split in ("train", "dev", "test")]
    assert sum(map(len, parts)) == 60
    assert len(set.union(*parts)) == 60
    assert len(load_rows(path, "all", [2])) == 60


def test_statements_may_be_the_public_text_or_json_lists(tmp_path: Path) -> None:
    as_lists = [["lying", 1], ["and", ["lying", 0], ["lying", 1]]]
    path = write(tmp_path / "2ppl.test.jsonl", row(0), row(1, statements=as_lists))
    first, second = load_rows(str(path), "test", [2])
    assert first.data["statements"] == second.data["statements"] == as_lists


def test_every_bad_row_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = write(
        tmp_path / "bad.test.jsonl",
        row(0, statements=None),
        "{not json",
        "[1, 2]",
        {"question": "q"},
        row(4, names=["Ann"], solution=[True]),
        row(5, solution=[1, 0]),
        row(6, names=["Ann", "Ann"]),
        row(7, statements="__import__('os').getcwd()"),
        row(8, statements=TWO_SOLUTIONS),
        row(0, statements=None),
    )
    with pytest.raises(UserError) as caught:
        load_rows(str(path), "test", [2])
    expected = {
        2: "not a JSON object",
        3: "not a JSON object",
        4: "no field names, solution",
        5: "1 names; allowed are 2 to 8",
        6: "solution must be a list of true",
        7: "names must be a list of different names",
        8: "statements cannot be read",
        9: "do not have the stated solution as their only one",
        10: "id 'row-0' is also that of",
    }
    assert len(caught.value.problems) == len(expected)
    for (line, message), problem in zip(expected.items(), caught.value.problems, strict=True):
        assert problem.startswith(f"{path}:{line}: ")
        assert message in problem


def test_many_bad_rows_are_counted_not_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.test.jsonl", *["nonsense"] * 50)
    with pytest.raises(UserError) as caught:
        load_rows(str(path), "test", [2])
    assert len(caught.value.problems) == 11
    assert "40 more rows" in caught.value.problems[-1]


def test_what_is_not_there_is_said(tmp_path: Path, folder: Path) -> None:
    write(tmp_path / "empty.test.jsonl")
    (tmp_path / "torn.test.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 100)[:-9])
    (tmp_path / "table.txt").write_text("a,b\n")
    (tmp_path / "nothing").mkdir()
    for data, message in {
        "no/such/folder": "no such file or folder, and not a hub id",
        str(tmp_path / "missing.jsonl"): "no such file or folder",
        str(tmp_path / "empty.test.jsonl"): "no test problem in it",
        str(tmp_path / "torn.test.jsonl.gz"): "cannot be read",
        str(tmp_path / "table.txt"): "not a file of rows",
        str(tmp_path / "nothing"): "no file of rows in this folder",
    }.items():
        with pytest.raises(UserError) as caught:
            load_rows(data, "test", [2])
        assert message in str(caught.value), data
    with pytest.raises(UserError, match=r"no test problem with 5 people \(it has 2 people\)"):
        load_rows(str(folder / "2ppl.test.jsonl"), "test", [5])


def test_hub_rows_have_the_public_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(hub_id: str, *, name: str, split: str) -> list[dict[str, Any]]:
        calls.append((hub_id, name, split))
        return [{"quiz": "Who?", "names": ["Ann", "Bob"], "solution": [True, False], "statements": None, "index": 0}]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    rows = load_rows("K-and-K/knights-and-knaves", "test", [2])
    assert calls == [("K-and-K/knights-and-knaves", "test", "2ppl")]
    assert (rows[0].id, rows[0].question, rows[0].data["solution"]) == ("2ppl-test-0", "Who?", [True, False])


def test_loaded_problems_follow_the_shares_and_say_their_people(folder: Path) -> None:
    task = KnightsAndKnaves(people={2: 1.0}, data=str(folder), style="logic_rl")
    problems = task.problems("test", 100, 0)
    assert len(problems) == 5
    assert {problem.subgroup for problem in problems} == {"2 people"}
    assert {problem.id for problem in task.problems("test", 3, 0)} < {problem.id for problem in problems}


def test_the_compact_style_needs_statements(folder: Path) -> None:
    task = KnightsAndKnaves(people={2: 1.0}, data=str(folder), style="compact")
    with pytest.raises(UserError, match="compact style needs rows with `statements`"):
        task.problems("test", 5, 0)


@pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"no public Knights & Knaves rows at {PUBLIC}")
def test_the_public_rows_load_and_their_answers_are_judged_right() -> None:
    people = dict.fromkeys(range(2, 9), 1 / 7)
    task = KnightsAndKnaves(people=people, data=str(PUBLIC), style="logic_rl")
    problems = task.problems("test", 700, 0)
    assert len(problems) == 700
    for problem in problems:
        roles = zip(problem.data["names"], problem.data["solution"], strict=True)
        answer = ", ".join(f"{name} is a {'knight' if role else 'knave'}" for name, role in roles)
        assert task.judge(problem, f"r</think><answer>{answer}</answer>").reward == 3.0
