"""Rows of files become problems: every format, splits, and every fault with its file, its line and its columns."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import data as task_data
from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.data import SkippedRow
from rlvr_cli.tasks.gsm8k import GSM8K
from rlvr_cli.tasks.hitab import HiTab
from rlvr_cli.tasks.hitab_tables import problem_from as hitab_problem
from rlvr_cli.tasks.hub import looks_like_hub_id, parse_hub_id
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.math import MathTask
from rlvr_cli.tasks.math_rows import problem_from
from rlvr_cli.tasks.sets import has_fixed_split
from tests.tasks.rows import write

# Ann says that Bob is a knave; Bob says that both are knaves: Ann is a knight and Bob a knave.
STATEMENTS = "(('lying', 1), ('and', ('lying', 0), ('lying', 1)))"
ROWS: dict[Any, Any] = {
    MathTask: lambda n: {"id": f"w{n}", "question": f"What is {n}, or\n{n} + 0?", "answer": str(n)},
    GSM8K: lambda n: {"id": f"w{n}", "question": f"What is {n}, or\n{n} + 0?", "answer": str(n)},
    Countdown: lambda n: {"id": f"n{n}", "nums": [n, 2, 3], "target": n + 5},
    KnightsAndKnaves: lambda n: {
        "id": f"p{n}",
        "question": f"{n}?",
        "names": ["Ann", "Bob"],
        "solution": [True, False],
    },
    HiTab: lambda n: {"id": f"t{n}", "question": "?", "table": [["", "a"], ["b", str(n)]], "answer": [n]},
}
KEYS = {Countdown: {"numbers": {3: 1.0}}, KnightsAndKnaves: {"people": {2: 1.0}, "style": "logic_rl"}}
TASKS = pytest.mark.parametrize("kind", ROWS)


def problems(kind: Any, data: Path, split: str = "all") -> Any:
    return kind(data=str(data), **KEYS.get(kind, {})).load(split)


def ids(kind: Any, data: Path, split: str = "all") -> set[str]:
    return {problem.id for problem in problems(kind, data, split)}


def wrong(kind: Any, data: Path, split: str = "all") -> Any:
    with pytest.raises(UserError) as caught:
        problems(kind, data, split)
    return caught.value.problems


def rows(kind: Any, *numbers: int) -> list[Any]:
    return [ROWS[kind](number) for number in range(*numbers)]


@TASKS
def test_every_format_gives_the_problems_that_json_lines_give(tmp_path: Path, kind: Any) -> None:
    plain = write(tmp_path / "set.jsonl", rows(kind, 40))
    for split in ("all", "train", "dev", "test"):
        expected = problems(kind, plain, split)
        for ending in ("jsonl.gz", "json", "csv", "parquet"):
            found = problems(kind, write(tmp_path / f"set.{ending}", rows(kind, 40)), split)
            if ending == "jsonl.gz":
                assert [one.question for one in found] == [one.question for one in expected]
            else:
                assert found == expected


@TASKS
def test_a_file_without_a_split_in_its_name_is_divided_and_another_serves_its_own(tmp_path: Path, kind: Any) -> None:
    path = write(tmp_path / "mine.jsonl", rows(kind, 400))
    parts = {split: ids(kind, path, split) for split in ("train", "dev", "test", "all")}
    assert parts["train"] | parts["dev"] | parts["test"] == parts["all"] and len(parts["all"]) == 400
    assert sum(map(len, parts.values())) == 800 and all(20 < len(parts[split]) < 90 for split in ("dev", "test"))
    assert not has_fixed_split(str(path)) and has_fixed_split(str(tmp_path))
    path = write(tmp_path / "x.test.jsonl", rows(kind, 30))
    assert has_fixed_split(str(path)) and len(ids(kind, path, "test")) == len(ids(kind, path, "all")) == 30
    assert "has only test problems, and train problems were requested" in wrong(kind, path, "train")[0]


@TASKS
def test_a_folder_has_train_and_test_files_and_dev_is_an_eighth_of_train_where_it_has_no_file(
    tmp_path: Path, kind: Any
) -> None:
    write(tmp_path / "train.jsonl.gz", rows(kind, 200))
    write(tmp_path / "test.jsonl", rows(kind, 200, 230))
    train, dev, test = (ids(kind, tmp_path, split) for split in ("train", "dev", "test"))
    assert len(train | dev) == len(train) + len(dev) == 200 and 10 < len(dev) < 45 and len(test) == 30
    assert len(ids(kind, tmp_path, "all")) == 230
    task = kind(data=str(tmp_path), **KEYS.get(kind, {}))
    assert {one.id for one in task.problems("test", 7, 0)} < test
    assert task.problems("test", 7, 1) != task.problems("test", 7, 0)
    write(tmp_path / "dev.jsonl", rows(kind, 300, 302))
    assert (len(ids(kind, tmp_path, "dev")), len(ids(kind, tmp_path, "train"))) == (2, 200)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_folder_of_shards_as_the_hub_lays_them_out(tmp_path: Path, ending: str) -> None:
    for split, numbers in (("train", (30,)), ("test", (30, 40)), ("validation", (50, 51))):
        write(tmp_path / "data" / f"{split}-00000-of-00001.{ending}", rows(Countdown, *numbers))
    assert [len(problems(Countdown, tmp_path, split)) for split in ("train", "dev", "test")] == [30, 1, 10]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path / "empty.test.jsonl", [])
    (tmp_path / "torn.test.jsonl.gz").write_bytes(gzip.compress(b'{"nums": [1, 2, 3], "target": 6}\n' * 100)[:-9])
    (tmp_path / "rows.txt").write_text("a,b\n")
    (tmp_path / "nothing").mkdir()
    write(tmp_path / "few.test.jsonl", [{"nums": [1, 2, 3, 4], "target": 5}])
    for data, message in {
        "no/such/folder": "no such file or folder, and not a hub id",
        "countdwn": "Did you mean `countdown`",
        str(tmp_path / "missing.jsonl"): "no such file or folder",
        str(tmp_path / "empty.test.jsonl"): "has no test problem",
        str(tmp_path / "torn.test.jsonl.gz"): "cannot be read",
        str(tmp_path / "rows.txt"): "the name of a file of rows must end in .jsonl, .jsonl.gz, .json, .csv or .parquet",
        str(tmp_path / "nothing"): "no file of rows in this folder",
        str(tmp_path / "few.test.jsonl"): "no test problem with 3 numbers (it has 4 numbers)",
    }.items():
        assert message in wrong(Countdown, data, "test")[0], data  # type: ignore[arg-type]
    with pytest.raises(UserError, match="split `all` is for loaded problems"):
        MathTask().problems("all", 1, 0)


def test_a_bad_row_is_named_by_its_line_or_its_number(tmp_path: Path) -> None:
    bad = [*rows(Countdown, 2), {"id": "n9", "nums": [1, 2, 3], "target": 10**12}, ROWS[Countdown](0)]
    for ending, places in {
        "jsonl": [":3: target", ":4: id"],
        "csv": [":4: target", ":5: id"],
        "json": [", row 3: target", ", row 4: id"],
        "parquet": [", row 3: target", ", row 4: id"],
    }.items():
        path = write(tmp_path / f"bad.{ending}", bad)
        for message, place in zip(wrong(Countdown, path), places, strict=True):
            assert message.startswith(f"{path}{place}")
    many = wrong(Countdown, write(tmp_path / "many.jsonl", ["nonsense"] * 50))
    assert len(many) == 11 and "40 more rows" in many[-1]
    # A missing column is named once.
    misspelled = [{"nums": [1, 2, 3], "targets": 6}] * 3
    for ending in ("jsonl", "csv", "parquet"):
        found = wrong(Countdown, write(tmp_path / f"column.{ending}", misspelled))
        assert len(found) == 1 and "no field target;" in found[0] and "Did you mean `targets`?" in found[0]


HALF = "\ud800"
TABLE = [["a", "b"], ["c", "1"]]
BAD_ROWS: list[tuple[Any, Any, str]] = [
    (Countdown, "{not json", "not a JSON object"),
    (Countdown, [1, 2], "not a JSON object"),
    (Countdown, {"id": "n0", "nums": [1, 2, 3], "target": 6}, "id 'n0' is also that of"),
    (Countdown, {"nums": "1 2 3", "target": 6}, "nums must be a list of whole numbers"),
    (Countdown, {"nums": [1, 2, -3], "target": 6}, "nums must be a list of whole numbers"),
    (Countdown, {"nums": [1], "target": 1}, "nums must have 2 to 6 numbers; got 1"),
    (Countdown, '{"nums": [1, 2, 3], "target": 1e400}', "larger than any float"),
    (Countdown, {"nums": [1, 2, 3], "target": "6"}, "target must be a whole number"),
    (KnightsAndKnaves, {"question": "q"}, "no field names, solution"),
    (KnightsAndKnaves, {"names": ["Ann"], "solution": [True]}, "names must have 2 to 8 entries; got 1"),
    (KnightsAndKnaves, {"names": ["Ann", "Ann"]}, "names must be a list of different names"),
    (KnightsAndKnaves, {"statements": "__import__('os').getcwd()"}, "statements cannot be read"),
    (
        KnightsAndKnaves,
        {"statements": "(('lying', 1), ('lying', 0))"},
        "solution must be the only solution of statements",
    ),
    (MathTask, {"question": "?"}, "no field answer"),
    (MathTask, {"answer": "$ $"}, "answer is empty"),
    (MathTask, {"answer": "\frac{1}{2}"}, "answer has the control character"),
    (MathTask, '{"question": "?", "answer": ' + "[" * 700 + "1" + "]" * 700 + "}", ""),
    (MathTask, '{"question": "?", "answer": NaN}', "not JSON"),
    (GSM8K, '{"question": "?", "answer": 1' + "7" * 308 + "}", "answer must be a number"),
    (GSM8K, {"answer": "a lot"}, "answer must be a number"),
    (GSM8K, {"question": " "}, "question must be non-empty text"),
    (HiTab, {"answer": []}, "answer must be a list"),
    (HiTab, {"table": None}, "a row needs question and table"),
    (HiTab, {"table": None, "table_id": 9}, "table 9 is not in tables.jsonl"),
    (HiTab, {"table": [["a", "b"], ["c"]]}, "rows of one length"),
    (HiTab, {"table": {"texts": [["a"]], "header_rows": 2}}, "header_rows must be a whole number from 1 to 1"),
    (HiTab, {"table": [["a"] * 1000] * 201}, "more than 200,000 cells"),
    (MathTask, {"question": f"How {HALF}?"}, "\\ud800 is half of a surrogate pair"),
    (Countdown, {"nums": [1, 2, 3], "target": 6, "id": HALF}, "\\ud800 is half of a surrogate pair"),
    (HiTab, {"table": [["", "a"], ["b", HALF]]}, "\\ud800 is half of a surrogate pair"),
]


def test_a_row_that_is_no_problem_is_refused_with_its_line(tmp_path: Path) -> None:
    for kind, row, message in BAD_ROWS:
        if isinstance(row, dict) and kind is not Countdown and "no field" not in message:
            row = {**ROWS[kind](1), **row}
        found = wrong(kind, write(tmp_path / "rows.test.jsonl", [ROWS[kind](0), row]), "test")
        assert len(found) == 1 and "rows.test.jsonl:2: " in found[0] and message in found[0], (kind, row, found)
    write(tmp_path / "tables.jsonl", [{"id": 1, "texts": [["", HALF], ["b", "3"]]}])
    found = wrong(HiTab, write(tmp_path / "rows.test.jsonl", [{"question": "?", "table_id": 1, "answer": [3]}]), "test")
    assert "tables.jsonl:1: \\ud800" in found[0]
    # What no file can spell can still stand in a row of the hub, or of the user's own code.
    for kind in (MathTask, GSM8K):
        with pytest.raises(UserError, match=r"here: .*answer"):
            kind().problem_from({"question": "?", "answer": float("nan")}, "here")
    for answer in (float("nan"), 10**5000):
        with pytest.raises(UserError, match="here:3: answer must be a list"):
            hitab_problem({**ROWS[HiTab](0), "answer": [answer]}, "here:3")


def test_values_at_the_edge_of_json_mean_what_they_say(tmp_path: Path) -> None:
    gold = "1" + "7" * 308
    path = write(tmp_path / "rows.jsonl", [f'{{"question": "\\ud83c\\udf4e + \\ud83c\\udf4e?", "answer": {gold}}}'])
    (problem,) = problems(MathTask, path)
    assert problem.question == "🍎 + 🍎?" and problem.data["answer"] == gold
    assert MathTask().judge(problem, rf"\boxed{{{gold}}}").correct
    assert not MathTask().judge(problem, rf"\boxed{{{gold[:-1]}8}}").correct
    for kind in (MathTask, GSM8K, Countdown, KnightsAndKnaves):
        bare = {key: value for key, value in ROWS[kind](1).items() if key != "id"}
        two = problems(kind, write(tmp_path / "none.jsonl", [bare, {"id": None, **bare}]))
        assert len({one.id for one in two}) == 2 and two[0].data == two[1].data


def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for text, message in (
        (b"", "is empty"),
        (b"id,question,answer,answer\n1,?,2,3\n", "duplicate column names 'answer'"),
        (b"question,answer\n?,1\nwhat?,1,2\n", ":3: 3 cells in 2 columns"),
        (b"question,answer\n?,1\n\xff?,1\n", ":3: not UTF-8 (byte 1 of the line, 0xff)"),
        (b'question,answer\n?,1\n"never closed,1\n', ":3: cannot be read as CSV"),
        (b"question;answer\n?;1\n", "no field question, answer"),
    ):
        (tmp_path / "set.csv").write_bytes(text)
        assert message in wrong(MathTask, tmp_path / "set.csv")[0]
    whole = write(tmp_path / "whole.parquet", rows(MathTask, 40))
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-100])
    assert "cannot be read as parquet" in wrong(MathTask, tmp_path / "cut.parquet")[0]
    twice = pyarrow.table([["?"], ["1"], ["2"]], names=["question", "answer", "answer"])
    pyarrow.parquet.write_table(twice, whole)
    assert "duplicate column names 'answer'" in wrong(MathTask, whole)[0]
    for content, message in ((b'{"question": "?"}', "must be a list of rows"), (b"\xff[]", "not UTF-8")):
        (tmp_path / "set.json").write_bytes(content)
        assert message in wrong(MathTask, tmp_path / "set.json")[0]


def test_rows_of_the_public_layouts() -> None:
    assert problem_from({"problem": "?", "answer": 27.0}, "here").data["answer"] == "27"
    assert problem_from({"question": "?", "final_answer": ["$1$", "$2$"]}, "here").data["answer"] == "$1$, $2$"
    assert problem_from({"problem": "?", "solution": r"Thus \boxed{\frac12}."}, "here").data["answer"] == r"\frac12"
    text = "What is 1 + 1? Let's think step by step and output the final answer within \\boxed{}."
    fields = {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "2"}}
    assert problem_from(fields, "here").question == "What is 1 + 1?"
    levels = [problem_from({"question": "?", "answer": "2", "level": level}, "here") for level in ("Level 5", 5)]
    assert levels[0].subgroup == levels[1].subgroup
    with pytest.raises(SkippedRow, match="here: a row whose solution has no boxed answer cannot be judged"):
        problem_from({"question": "?", "solution": "Clear."}, "here")
    with pytest.raises(UserError, match="here: no field answer") as raised:
        problem_from({"question": "?"}, "here")
    assert not isinstance(raised.value, SkippedRow)
    bare = Countdown().problem_from({"nums": [100, 2, 3], "target": 105}, "test.jsonl:1")
    assert (bare.id, bare.subgroup, bare.structure) == ("test.jsonl:1", "3 numbers", "2 3 100 = 105")
    lists = [["lying", 1], ["and", ["lying", 0], ["lying", 1]]]
    for statements in (STATEMENTS, lists):
        row = {**ROWS[KnightsAndKnaves](0), "statements": statements}
        assert KnightsAndKnaves().problem_from(row, "here").data["statements"] == lists


def test_a_style_that_needs_what_rows_lack_is_refused(tmp_path: Path) -> None:
    data = {kind: str(write(tmp_path / f"{kind.__name__}.test.jsonl", rows(kind, 3))) for kind in ROWS}
    write(tmp_path / "large.test.jsonl", [{"nums": [300, 4, 5], "target": 309}])
    for task, message in (
        (
            KnightsAndKnaves(data=data[KnightsAndKnaves], people={2: 1.0}, style="compact"),
            "needs `statements` in every row",
        ),
        (MathTask(data=data[MathTask], style="compact"), "need `story` in every row"),
        (
            Countdown(data=str(tmp_path / "large.test.jsonl"), numbers={3: 1.0}, largest=20).for_model("compact"),
            "supports whole numbers of 0 to 144",
        ),
    ):
        with pytest.raises(UserError, match=message):
            task.problems("test", 5, 0)
    task = KnightsAndKnaves(data=data[KnightsAndKnaves], people={2: 1.0}, style="logic_rl")
    with pytest.raises(UserError, match=r"task\.data: problem p\d has no `statements`"):
        task.solutions(task.problems("test", 1, 0)[0])


def test_corrections_of_hitab_are_used_where_they_are_requested(tmp_path: Path) -> None:
    first = {**ROWS[HiTab](1), "question_checked": "better?", "answer_checked": [2]}
    path = str(write(tmp_path / "test.jsonl", [first, {**ROWS[HiTab](3), "question_checked": ["slipped"]}]))
    plain, corrected = (HiTab(data=path, corrected=flag).load("test") for flag in (False, True))
    assert [(one.question, one.data["answer"]) for one in plain] == [("?", [1]), ("?", [3])]
    assert [(one.question, one.data["answer"]) for one in corrected] == [("better?", [2]), ("?", [3])]


def test_tables_of_hitab_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "tables.jsonl", [{"id": 7, "title": "t", "texts": TABLE}])
    row = {"question": "?", "table_id": 7, "answer": [1], "aggregation": ["sum", "div"]}
    write(tmp_path / "test.jsonl", [row])
    (problem,) = problems(HiTab, tmp_path, "test")
    assert problem.data["table"].startswith("Title: t") and problem.subgroup == "sum+div"
    alone = hitab_problem({"answer": 5}, "here:1")
    assert (alone.data["answer"], alone.data["table"]) == ([5], "")
    assert alone.id == hitab_problem({"answer": [5]}, "there:9").id


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    read_rows = task_data.read_rows

    def counted(path: Path) -> Any:
        reads.append(path)
        return read_rows(path)

    monkeypatch.setattr(task_data, "read_rows", counted)
    path = write(tmp_path / "rows.jsonl", [*rows(MathTask, 40), {"question": "None?", "answer": ""}])
    for _ in range(3):
        with pytest.warns(UserWarning, match="1 rows with an empty answer were left out"):
            assert sum(len(problems(MathTask, path, split)) for split in ("train", "dev", "test")) == 40
    assert reads == [path]
    write(path, rows(MathTask, 30))
    assert len(problems(MathTask, path)) == 30 and reads == [path, path]


def test_a_hub_id_has_a_configuration_and_a_revision_and_offline_is_one_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse_hub_id("owner/name") == ("owner/name", None, None)
    assert parse_hub_id("owner/name:main@v1.0") == ("owner/name", "main", "v1.0")
    assert parse_hub_id("o/n@refs/convert/parquet") == ("o/n", None, "refs/convert/parquet")
    assert not looks_like_hub_id("owner/name.csv") and not looks_like_hub_id("a/b/c")
    assert run(["tasks", "show", "math", "task.data=owner/name"]) == 2
    assert "OfflineModeIsEnabled" in " ".join(capsys.readouterr().err.split())


def test_csv_is_text_and_an_empty_id_is_none(tmp_path: Path) -> None:
    path = tmp_path / "set.csv"
    path.write_text('\ufeffid,question,answer\n,"a, ""b""?","[1, 2]"\n\n,c?,007\n', encoding="utf-8")
    first, second = problems(MathTask, path)
    assert (first.question, first.data["answer"], first.id) == ('a, "b"?', "[1, 2]", "set:2")
    assert (second.data["answer"], second.id) == ("007", "set:4")
