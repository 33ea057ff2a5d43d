"""Rows of every format become the same problems; what is wrong with a file is said with its place and its columns."""

import csv
import json
import os
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.gsm8k import GSM8K
from rlvr_cli.tasks.hitab import HiTab
from rlvr_cli.tasks.hub import looks_like_hub_id, parts_of
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.math import MathTask

WORDS = [{"id": f"w{n}", "question": f"What is {n}, or\n{n} + 0?", "answer": str(n)} for n in range(40)]
NUMBERS = [{"id": f"n{n}", "nums": [n, 2, 3], "target": n + 5} for n in range(40)]
PEOPLE = [{"id": f"p{n}", "question": f"{n}?", "names": ["Ann", "Bob"], "solution": [True, False]} for n in range(40)]
TABLES = [{"id": f"t{n}", "question": "?", "table": [["", "a"], ["b", str(n)]], "answer": [n]} for n in range(40)]
TASKS = [
    (MathTask, WORDS, {}),
    (GSM8K, WORDS, {}),
    (Countdown, NUMBERS, {"numbers": {3: 1.0}}),
    (KnightsAndKnaves, PEOPLE, {"people": {2: 1.0}, "style": "logic_rl"}),
    (HiTab, TABLES, {}),
]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(rows[0])
            for row in rows:
                cells = row.values()
                writer.writerow(cell if isinstance(cell, str) else json.dumps(cell) for cell in cells)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def problems(kind, data, split="all", **keys):
    return kind(data=str(data), **keys).load(split)


def wrong(kind, data, split="all", **keys):
    with pytest.raises(UserError) as caught:
        problems(kind, data, split, **keys)
    return caught.value.problems


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
@pytest.mark.parametrize(("kind", "rows", "keys"), TASKS)
def test_every_format_gives_the_problems_that_json_lines_give(tmp_path, kind, rows, keys, ending):
    for split in ("all", "train", "dev", "test"):
        expected = problems(kind, write(tmp_path / "set.jsonl", rows), split, **keys)
        assert problems(kind, write(tmp_path / f"set.{ending}", rows), split, **keys) == expected


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "parquet"])
def test_a_folder_of_two_splits_as_the_hub_lays_them_out(tmp_path, ending):
    write(tmp_path / "data" / f"train-00000-of-00001.{ending}", NUMBERS[:30])
    write(tmp_path / "data" / f"test-00000-of-00001.{ending}", NUMBERS[30:])
    keys = {"numbers": {3: 1.0}}
    assert len(problems(Countdown, tmp_path, "test", **keys)) == 10
    train, dev = problems(Countdown, tmp_path, "train", **keys), problems(Countdown, tmp_path, "dev", **keys)
    assert len(train) + len(dev) == 30 and train and dev
    write(tmp_path / "data" / f"validation-00000-of-00001.{ending}", [{**NUMBERS[0], "id": "other"}])
    assert [problem.id for problem in problems(Countdown, tmp_path, "dev", **keys)] == ["other"]
    assert len(problems(Countdown, tmp_path, "train", **keys)) == 30


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_a_missing_column_is_said_once_with_the_columns_there_are(tmp_path, ending):
    rows = [{"nums": [1, 2, 3], "targets": 6, "note": "x"}] * 3
    found = wrong(Countdown, write(tmp_path / f"set.{ending}", rows))
    assert len(found) == (3 if ending == "jsonl" else 1)
    assert "no field target;" in found[0] and "It has nums, targets, note. Did you mean `targets`?" in found[0]


def test_the_place_of_a_bad_row(tmp_path):
    rows = [*NUMBERS[:2], {"id": "n9", "nums": [1, 2, 3], "target": 10**12}, {**NUMBERS[0]}]
    for ending, places in {
        "jsonl": [":3: target", ":4: id"],
        "csv": [":4: target", ":5: id"],
        "json": [", row 3: target", ", row 4: id"],
        "parquet": [", row 3: target", ", row 4: id"],
    }.items():
        path = write(tmp_path / f"bad.{ending}", rows)
        for message, place in zip(wrong(Countdown, path), places, strict=True):
            assert message.startswith(f"{path}{place}")


def test_csv_is_text_and_an_empty_id_is_none(tmp_path):
    path = tmp_path / "set.csv"
    path.write_text('\ufeffid,question,answer\n,"a, ""b""?","[1, 2]"\n\n,c?,007\n', encoding="utf-8")
    first, second = problems(MathTask, path)
    assert (first.question, first.data["answer"], first.id) == ('a, "b"?', "[1, 2]", "set:2")
    assert (second.data["answer"], second.id) == ("007", "set:4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty"),
        (b"id,question,answer,answer\n1,?,2,3\n", "several columns are called 'answer'"),
        (b"question,answer\n?,1\nwhat?,1,2\n", ":3: 3 cells in 2 columns"),
        (b"question,answer\n?,1\n\xff?,1\n", ":3: not UTF-8 (byte 1 of the line, 0xff)"),
        (b'question,answer\n?,1\n"never closed,1\n', ":3: cannot be read as CSV"),
        (
            b"question;answer\n?;1\n",
            "no field question, answer; a problem needs question and answer.",
        ),
    ],
)
def test_a_bad_csv_file(tmp_path, text, message):
    (tmp_path / "set.csv").write_bytes(text)
    assert message in wrong(MathTask, tmp_path / "set.csv")[0]


def test_a_bad_parquet_or_json_file(tmp_path):
    whole = tmp_path / "whole.parquet"
    write(whole, WORDS)
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-100])
    assert "cannot be read as parquet" in wrong(MathTask, tmp_path / "cut.parquet")[0]
    twice = pyarrow.table([["?"], ["1"], ["2"]], names=["question", "answer", "answer"])
    pyarrow.parquet.write_table(twice, tmp_path / "twice.parquet")
    assert "several columns are called 'answer'" in wrong(MathTask, tmp_path / "twice.parquet")[0]
    pyarrow.parquet.write_table(pyarrow.table({"question": pyarrow.array([], pyarrow.string())}), whole)
    assert "no problem in it" in wrong(MathTask, whole)[0]
    (tmp_path / "set.json").write_text('{"question": "?", "answer": "1"}')
    assert "is not a list of rows" in wrong(MathTask, tmp_path / "set.json")[0]
    (tmp_path / "set.json").write_bytes(b"\xff[]")
    assert "not UTF-8" in wrong(MathTask, tmp_path / "set.json")[0]


def test_what_may_be_given_is_said(tmp_path):
    (found,) = wrong(MathTask, "math5000")
    assert "Did you mean `math500`?" in found and ".parquet" in found and "owner/name:configuration@revision" in found
    (tmp_path / "rows.txt").write_text("?")
    assert (
        "Its name must end in .jsonl, .jsonl.gz, .json, .csv or .parquet" in wrong(MathTask, tmp_path / "rows.txt")[0]
    )


def test_a_hub_id_has_a_configuration_and_a_revision():
    assert parts_of("owner/name") == ("owner/name", None, None)
    assert parts_of("owner/name:main@v1.0") == ("owner/name", "main", "v1.0")
    assert parts_of("o/n@refs/convert/parquet") == ("o/n", None, "refs/convert/parquet")
    assert not looks_like_hub_id("owner/name.csv") and not looks_like_hub_id("a/b/c")


def test_without_a_network_the_hub_is_one_message(tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    words = ["tasks", "show", "math", "task.data=owner/name"]
    command = [sys.executable, "-m", "rlvr_cli", *words]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    text = " ".join(shown.stderr.split())
    assert shown.returncode == 2 and "HF_HUB_OFFLINE is set, so only what was loaded before can be had" in text
    assert "Traceback" not in text


def test_json_lines_and_csv_are_read_without_datasets(tmp_path):
    code = (
        "import sys\nfrom rlvr_cli.tasks.math import MathTask\n"
        "for path in sys.argv[1:]: assert len(MathTask(data=path).load('all')) == 40\n"
        "assert not {'datasets', 'pyarrow', 'torch'} & set(sys.modules)"
    )
    paths = [write(tmp_path / f"set.{ending}", WORDS) for ending in ("jsonl", "json", "csv")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
