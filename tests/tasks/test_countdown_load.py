"""Public rows load from a folder, a file or the hub; what is wrong with a file is said with its line."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import countdown as module
from rlvr_cli.tasks.countdown import Countdown, problem_from
from rlvr_cli.tasks.countdown_puzzles import CountdownPuzzle, find_solutions
from rlvr_cli.tasks.problem import Problem
from tests.tasks.test_countdown_puzzles import ChatTokenizer

_DATA = os.environ.get("RLVR_DATA_DIR") or Path(__file__).resolve().parents[3] / "shared" / "data"
PUBLIC = Path(_DATA) / "countdown"


def write(path: Path, *rows: Any) -> Path:
    lines = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in rows)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines, encoding="utf-8")
    return path


def load_problems(data: str, split: Any, numbers: list[int]) -> list[Problem]:
    shares = {number: 1 / len(numbers) for number in numbers}
    return Countdown(data=data, numbers=shares).load(split)


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"nums": [number, 2, 3], "target": number + 5} for number in range(start, start + count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "train.jsonl.gz", *rows(80))
    write(tmp_path / "test.jsonl", *rows(5, start=100))
    return tmp_path


def test_bare_rows_are_enough_and_get_their_place_as_id(folder: Path) -> None:
    problem = load_problems(str(folder), "test", [3])[0]
    assert (problem.id, problem.data, problem.subgroup) == (
        "test.jsonl:1",
        {"nums": [100, 2, 3], "target": 105},
        "3 numbers",
    )
    assert problem.structure == "2 3 100 = 105"


def test_a_folder_has_train_and_test_and_dev_is_an_eighth_of_train(folder: Path) -> None:
    train, dev, test = (load_problems(str(folder), split, [3]) for split in ("train", "dev", "test"))
    assert len(test) == 5
    assert len(train) + len(dev) == 80
    assert 3 <= len(dev) <= 20
    assert not {p.id for p in train} & {p.id for p in dev}
    write(folder / "dev.jsonl", *rows(2, start=200))
    assert len(load_problems(str(folder), "dev", [3])) == 2
    assert len(load_problems(str(folder), "train", [3])) == 80
    assert len(load_problems(str(folder), "all", [3])) == 87


def test_a_file_named_for_its_split_serves_that_one_and_another_is_divided(folder: Path) -> None:
    with pytest.raises(UserError, match="holds test problems, and train ones were requested"):
        load_problems(str(folder / "test.jsonl"), "train", [3])
    path = str(write(folder / "mine.jsonl", *rows(60)))
    parts = [{p.id for p in load_problems(path, split, [3])} for split in ("train", "dev", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 60
    assert len(load_problems(path, "all", [3])) == 60


def test_every_bad_row_is_named_with_file_and_line(tmp_path: Path) -> None:
    good = {"id": "a", "nums": [1, 2, 3], "target": 6}
    expected = {
        "{not json": "not a JSON object",
        "[1, 2]": "not a JSON object",
        '{"target": 3}': "no field nums",
        '{"nums": [1, 2, 3]}': "no field target",
        '{"nums": "1 2 3", "target": 6}': "nums must be a list of whole numbers",
        '{"nums": [1, 2, 3.5], "target": 6}': "nums must be a list of whole numbers",
        '{"nums": [1, 2, true], "target": 6}': "nums must be a list of whole numbers",
        '{"nums": [1, 2, -3], "target": 6}': "nums must be a list of whole numbers",
        '{"nums": [1], "target": 1}': "nums has 1 numbers; allowed are 2 to 6",
        '{"nums": [1, 2, 3], "target": "6"}': "target must be a whole number",
        '{"nums": [1, 2, 3], "target": 1e400}': "target must be a whole number",
        json.dumps(good): "id 'a' is also that of",
        "[" * 100_000: "not a JSON object",
    }
    path = write(tmp_path / "bad.test.jsonl", good, *expected)
    with pytest.raises(UserError) as caught:
        load_problems(str(path), "test", [3])
    told = caught.value.problems
    assert told[-1] == "... and 3 more rows like these"
    assert caught.value.summary().startswith("more than 10 problems.")
    for line, (message, problem) in enumerate(zip(list(expected.values())[:10], told[:-1], strict=True), start=2):
        assert problem.startswith(f"{path}:{line}: ")
        assert message in problem


def test_problem_from_names_the_place_and_the_field() -> None:
    with pytest.raises(UserError, match=r"answers\.jsonl:3: no field nums, target"):
        problem_from({}, "answers.jsonl:3")
    assert problem_from({"nums": [1, 2], "target": 3}, "answers.jsonl:3").id == "answers.jsonl:3"


def test_what_is_not_there_is_said(tmp_path: Path, folder: Path) -> None:
    write(tmp_path / "empty.test.jsonl")
    (tmp_path / "table.txt").write_text("a,b\n")
    (tmp_path / "nothing").mkdir()
    for data, message in {
        "no/such/folder": "no such file or folder, and not a hub id",
        str(tmp_path / "missing.jsonl"): "no such file or folder",
        str(tmp_path / "empty.test.jsonl"): "no test problem in it",
        str(tmp_path / "table.txt"): "not a file of rows",
        str(tmp_path / "nothing"): "no file of rows in this folder",
    }.items():
        with pytest.raises(UserError) as caught:
            load_problems(data, "test", [3])
        assert message in str(caught.value), data
    with pytest.raises(UserError, match=r"no test problem with 4 numbers \(it has 3 numbers\)"):
        load_problems(str(folder), "test", [4])


def test_a_hub_set_laid_out_as_tiny_zeros_has_its_test_rows_after_its_train_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def load_dataset(hub_id: str, *, split: str) -> list[dict[str, Any]]:
        calls.append((hub_id, split))
        return [*rows(80), {"nums": [3, 2, 0], "target": 5}, *rows(3, start=100), *rows(9, start=200)]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr(module, "_HUB_TRAIN", 80)
    monkeypatch.setattr(module, "_HUB_TEST", 4)
    hub_id = "Jiayi-Pan/Countdown-Tasks-3to4"
    test = load_problems(hub_id, "test", [3])
    assert calls == [(hub_id, "train")]
    assert [p.id for p in test] == ["countdown-80", "countdown-81", "countdown-82", "countdown-83"]
    train, dev = (load_problems(hub_id, split, [3]) for split in ("train", "dev"))
    # Row 0 (0 2 3 = 5) is the first test puzzle with its numbers in another order.
    assert len(train) + len(dev) == 79
    with pytest.raises(UserError, match="split `all` is for local files"):
        load_problems(hub_id, "all", [3])
    monkeypatch.setattr(module, "_HUB_TRAIN", 80_000)
    parts = [load_problems(hub_id, split, [3]) for split in ("train", "dev", "test")]
    assert sum(map(len, parts)) == 93


@pytest.mark.skipif(not PUBLIC.is_dir(), reason=f"no public Countdown rows at {PUBLIC}")
def test_the_public_rows_load_their_prompts_are_ours_and_their_worked_solutions_are_right() -> None:
    text = gzip.decompress((PUBLIC / "test.jsonl.gz").read_bytes()).decode()
    public = {row["id"]: row["prompt"] for row in map(json.loads, text.splitlines())}
    for rule in ("paper", "strict"):
        task = Countdown.model_validate({"data": str(PUBLIC), "rule": rule}).replace(style="tiny_zero")
        problems = task.problems("test", 2000, 0)
        assert len(problems) == len(public) == 1024
        for problem in problems:
            assert task.prompt(problem, ChatTokenizer()) == public[problem.id]
            assert next(find_solutions(CountdownPuzzle(tuple(problem.data["nums"]), problem.data["target"])))
            assert all(task.judge(problem, solution).reward == 1.0 for solution in task.solutions(problem))
