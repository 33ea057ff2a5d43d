"""`rlvr score`: verdicts in the input's order, bad lines named at once, all written or nothing."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hostile_texts import block, problems_of, response, right_answer
from rlvr_cli.cli.app import run
from rlvr_cli.config.load import choose_task
from rlvr_cli.evaluation import score as scoring
from rlvr_cli.tasks import Task
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.problem import Problem, Verdict

KK = {"question": "Who is what?", "names": ["Ann", "Bob"], "solution": [True, False]}
RIGHT = "So. </think><answer> (1) Ann is a knight (2) Bob is a knave </answer>"
WRONG = RIGHT.replace("knave", "knight")
HOSTILE = [
    "",
    "\x00\x1b[2J\u202e\ud800",
    "<answer>" * 5000,
    "</think>" + "<answer>" * 2000 + "</answer>" * 2000,
    "(" * 10_000,
    "</think> <answer> 9**9**9**9 </answer>",
    "</think> <answer> __import__('os').abort() </answer>",
    "\\boxed{" * 3000,
    "\\boxed{9^{9^{9^{9}}}}",
    "</think> <answer> \u0661\u0662 \u00d7 \uff13 \u2212 \u00b2 \u00f7 \u221e </answer>",
    RIGHT + RIGHT,
    "a" * 1_000_000,
]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def answers(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def score(source: Path, target: Path, *more: str, task: str = "kk", code: int = 0) -> list[Any]:
    assert run(["score", "--task", task, "--input", str(source), "--output", str(target), *more]) == code
    return answers(target) if code == 0 else []


def kk_rows(count: int) -> list[Any]:
    return [{"problem": KK, "response": RIGHT if index % 3 else f"{index} {WRONG}"} for index in range(count)]


def test_one_verdict_a_line_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "in.jsonl", kk_rows(10))
    verdicts = score(source, tmp_path / "out" / "verdicts.jsonl")
    assert [verdict["correct"] for verdict in verdicts] == [bool(index % 3) for index in range(10)]
    right = {"reward": 3.0, "parts": {"format": 1.0, "answer": 2.0}, "answer": "KN", "correct": True}
    assert verdicts[1] == {**right, "reason": "correct"}
    assert "10 responses judged: 6 correct (60.0%)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["kk", "hitab"])
def test_hostile_responses_get_verdicts(name: str, tmp_path: Path) -> None:
    config = example_config(name)
    task = config.for_model("logic_rl")
    problem = problems_of(task, "train", 1, 0)[0]
    good = [response(task, "So", block(task, right_answer(task, problem)))]
    rows = [{"problem": problem.fields, "response": response} for response in [*good, *HOSTILE, *good]]
    source = write(tmp_path / "in.jsonl", rows)
    for rule in ("paper", "strict"):
        verdicts = score(source, tmp_path / f"{rule}.jsonl", "--rule", rule, task=name)
        assert len(verdicts) == len(rows)
        assert all(verdict["correct"] is True for verdict in verdicts[: len(good)] + verdicts[len(rows) - len(good) :])
        assert not any(verdict["correct"] for verdict in verdicts[len(good) : len(rows) - len(good)])
        assert {verdict["reason"] for verdict in verdicts} <= set(task.reasons)


def example_config(name: str) -> Task:
    return choose_task(name, generated=True)


def test_pieces_give_the_same_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "in.jsonl", kk_rows(100))
    whole = score(source, tmp_path / "whole.jsonl")
    monkeypatch.setattr(scoring, "CHUNK", 7)
    assert score(source, tmp_path / "pieces.jsonl") == whole


def test_workers_are_for_tasks_that_have_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    score(write(tmp_path / "in.jsonl", kk_rows(2)), tmp_path / "out.jsonl", "--workers", "2", code=2)
    assert "--workers 2: has no effect with task kk" in capsys.readouterr().err


def test_bad_lines_are_named_at_once_before_anything_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps({"problem": KK, "response": RIGHT})
    bad = [
        "not json",
        "[" * 100_000,
        "[1]",
        '{"response": "x"}',
        '{"problem": 3, "response": "x"}',
        json.dumps({"problem": KK, "response": None}),
        json.dumps({"problem": {"question": "q"}, "response": "x"}),
        json.dumps({"problem": {**KK, "solution": [1, 0]}, "response": "x"}),
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join([good, *bad, good]) + "\n")
    score(source, tmp_path / "out.jsonl", code=2)
    shown = capsys.readouterr().err
    for number in range(2, 2 + len(bad)):
        assert f"{source}:{number}: " in shown
    assert f"{source}:1:" not in shown and "names" in shown and f"{len(bad)} problems" in shown
    assert not (tmp_path / "out.jsonl").exists()


def test_bytes_that_are_no_text_and_objects_that_are_no_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps({"problem": KK, "response": RIGHT}).encode()
    bad = {
        b'{"problem": "\xff", "response": ""}': "not UTF-8 (byte 14 of the line, 0xff)",
        b'{"problem": {"solution": [NaN]}, "response": ""}': "NaN is not JSON",
        b'{"problem": {"target": -Infinity}, "response": ""}': "-Infinity is not JSON",
        b'{"problem": {"target": 1e400}, "response": ""}': "1e400 is larger than any float",
        b'{"problem": {"question": "\\ud800"}, "response": ""}': "half of a surrogate pair",
        b'{"problem": {"target": ' + b"1" * 5000 + b'}, "response": ""}': "not a JSON object",
        b"\xfe\xff\x00{": "not UTF-8",
    }
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join([good, *bad, good]) + b"\n")
    score(source, tmp_path / "out.jsonl", code=2)
    shown = capsys.readouterr().err
    for number, message in enumerate(bad.values(), start=2):
        assert any(line.startswith(f"{source}:{number}: ") and message in line for line in shown.splitlines()), message
    assert f"{source}:1:" not in shown


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.gz"])
def test_byte_order_marks_carriage_returns_blank_and_huge_lines_and_no_last_newline(tmp_path: Path, name: str) -> None:
    rows = [*kk_rows(3), {"problem": KK, "response": "x" * 5_000_000 + RIGHT}]
    data = codecs.BOM_UTF8 + "\r\n\r\n  \r\n".join(json.dumps(row) for row in rows).encode()
    source = tmp_path / name
    source.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    verdicts = score(source, tmp_path / "out.jsonl")
    assert [verdict["correct"] for verdict in verdicts] == [False, True, True, True]


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:30] + b"\x00" * 20 + data[50:]])
def test_damaged_gzip(tmp_path: Path, damage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(json.dumps(row) + "\n" for row in kk_rows(50))
    source = tmp_path / "in.jsonl.gz"
    source.write_bytes(damage(gzip.compress(rows.encode())))
    score(source, tmp_path / "out.jsonl", code=2)
    assert "cannot be read" in capsys.readouterr().err


def test_a_stopped_one_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"problem": {**KK, "question": f"{index}?"}, "response": RIGHT} for index in range(40)]
    source, target = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    judge, judged = KnightsAndKnaves.judge_many, list[int]()

    def counted(task: KnightsAndKnaves, problems: list[Problem], *arguments: Any) -> list[Verdict]:
        judged.append(len(problems))
        if len(judged) == 3:
            raise KeyboardInterrupt
        return judge(task, problems, *arguments)

    monkeypatch.setattr(scoring, "CHUNK", 10)
    monkeypatch.setattr(KnightsAndKnaves, "judge_many", counted)
    score(source, target, code=130)
    assert judged == [10, 10, 10] and [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


VOTES = [
    ("A", "A A B b \\text{B} (B)", "BBBB"),
    ("5", "5 5 5 7 x=7 7\\text{cm} 7^\\circ", "7777"),
    ("x^2-1", "x^2-1 (x-1)(x+1) x^2+1 1+x^2 x^{2}+1", ["x^2+1"] * 3),
    ("1,2", "1,2 2,1 3,4 4,3 \\{3,4\\}", ["3,4"] * 3),
    ("4", "4 4 1~1/2 11/2", ["1 1/2", "11/2"]),
]


@pytest.mark.parametrize("piece", [2, 256])
def test_equal_wrong_answers_to_a_problem_have_one_spelling(
    tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As right ones count as one: by the verifier's equality."""
    monkeypatch.setattr(scoring, "CHUNK", piece)
    rows = [
        {"problem": {"question": "Q?", "answer": gold}, "response": f"So \\boxed{{{said.replace('~', ' ')}}}."}
        for gold, every, _ in VOTES
        for said in every.split()
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    found = score(write(source, rows), target, task="math")
    wrong = [one["answer"] for one in found if one["reason"] == "wrong"]
    assert wrong == [spelling for _, _, spellings in VOTES for spelling in spellings]
    assert sum(one["correct"] for one in found) == 2 + 3 + 2 + 2 + 2


def test_an_output_that_exists_is_kept_or_replaced_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path / "in.jsonl", kk_rows(5)), tmp_path / "out.jsonl"
    before = score(source, target)
    score(source, target, "--rule", "strict", code=2)
    assert "out.jsonl exists. Choose another file, or use --overwrite." in capsys.readouterr().err
    assert answers(target) == before
    assert len(score(write(source, kk_rows(6)), target, "--rule", "strict", "--overwrite")) == 6
    score(source, source, code=2)
    assert len(answers(source)) == 6


def test_what_cannot_be_scored_is_null() -> None:
    verdict = Verdict(float("nan"), {"answer": float("nan")}, False, None, "timeout", scorable=False)
    expected = {"reward": None, "parts": {"answer": None}, "answer": None, "correct": None, "reason": "timeout"}
    assert scoring.verdict_as_json(verdict) == expected


@pytest.mark.parametrize("name", ["kk", "math"])
def test_judging_imports_no_torch(name: str, tmp_path: Path) -> None:
    problem = problems_of(example_config(name).for_model("logic_rl"), "train", 1, 0)[0]
    responses = [r"So \boxed{2x+3-x}", "</think> <answer> 1 + 1 </answer>"]
    source = write(tmp_path / "in.jsonl", [{"problem": problem.fields, "response": text} for text in responses])
    line = ["score", "--task", name, "--input", str(source), "--output", str(tmp_path / "out.jsonl")]
    program = (
        "import json, sys\n"
        "from rlvr_cli.cli.app import run\n"
        "code = run(json.loads(sys.argv[1]))\n"
        "print(json.dumps([code, sorted({name.split('.')[0] for name in sys.modules})]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(line)], capture_output=True, text=True, timeout=120, check=True
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    # Neither what reads mathematics: that is for the pool's processes.
    loaded = {"torch", "transformers", "trl", "datasets", "accelerate", "sympy", "math_verify", "antlr4"} & set(modules)
    assert not loaded


@pytest.mark.parametrize("command", ["score", "filter"])
@pytest.mark.parametrize("kind", ["below a file", "pipe"])
def test_what_cannot_be_written_is_refused_and_left_as_it_was(
    command: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", kk_rows(2))
    target = tmp_path / "out.jsonl"
    if kind == "below a file":
        target.write_text("mine")
        target = target / "out.jsonl"
    else:
        os.mkfifo(target)
    before = sorted((path.name, path.lstat().st_mode) for path in tmp_path.iterdir())
    if command == "score":
        score(source, target, "--overwrite", code=2)
    else:
        more = ["--model", "lab", "--problems", "2"]
        assert run(["tasks", command, "kk", "--output", str(target), "--overwrite", *more]) == 2
    assert f"--output {target}: " in capsys.readouterr().err
    assert sorted((path.name, path.lstat().st_mode) for path in tmp_path.iterdir()) == before


def test_neither_standard_input_nor_output_nor_a_compressed_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is judged, and no file of the name `-` is made."""
    source = write(tmp_path / "in.jsonl", kk_rows(2))
    monkeypatch.chdir(tmp_path)
    score(source, Path("-"), code=2)
    assert "--output -: cannot be standard output" in capsys.readouterr().err
    score(Path("-"), Path("out.jsonl"), code=2)
    assert "--input -: must be an existing regular file" in capsys.readouterr().err
    score(source, Path("out.jsonl.gz"), code=2)
    assert "--output out.jsonl.gz: the output is not compressed" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
