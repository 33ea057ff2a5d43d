"""`rlvr tasks filter`: problems kept by how many of a model's attempts at them are right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import choose_task
from rlvr_cli.core.errors import UserError
from rlvr_cli.evaluation.filter import decide, parse_keep
from rlvr_cli.tasks import Verdict
from rlvr_cli.tasks.kk import KnightsAndKnaves

Call = Callable[..., tuple[int, str, str]]
FEW = ("--problems", "24", "run.threads=1", "eval.batch=8")


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs ``rlvr tasks filter kk --model lab`` in an empty folder; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = rlvr(["tasks", "filter", "kk", "--model", "lab", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def account(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.with_name(f"{path.name}.meta.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", (0, 0)), ("8", (8, 8)), ("1..7", (1, 7)), ("1..", (1, 8)), ("..3", (0, 3)), (" 2..2 ", (2, 2))],
)
def test_ranges_of_right_attempts(text: str, expected: tuple[int, int]) -> None:
    assert parse_keep(text, 8) == expected


def test_what_is_no_range() -> None:
    for text in ["", "..", "x", "1-7", "1..2..3", "-1", "0.5", "7..1", "9", "1..9", "9.."]:
        with pytest.raises(UserError, match=r"must be|is above|only 8 attempts"):
            parse_keep(text, 8)


@pytest.mark.parametrize(
    ("right", "unjudged", "keep", "expected"),
    [
        (0, 0, (0, 0), "kept"),
        (1, 0, (0, 0), "dropped"),
        (0, 1, (0, 0), "undecided"),  # not known to have failed both
        (1, 1, (0, 0), "dropped"),  # whatever the other one is
        (3, 1, (1, 3), "undecided"),  # all four may be right
        (2, 1, (1, 3), "kept"),
        (0, 4, (1, 3), "undecided"),
        (0, 4, (0, 4), "kept"),
    ],
)
def test_an_attempt_that_could_not_be_judged_is_no_failure(
    right: int, unjudged: int, keep: tuple[int, int], expected: str
) -> None:
    assert decide(right, unjudged, keep) == expected


def test_numina_hard_by_default_both_of_two_attempts_fail(call: Call, tmp_path: Path) -> None:
    output = tmp_path / "hard.train.jsonl"
    code, out, err = call("--output", str(output), *FEW)
    assert code == 0, err
    found = account(output)
    samples = rows(Path(found["samples"]) / "samples.jsonl")
    assert len(samples) == 48
    right = {row["problem"]: 0 for row in samples}
    for row in samples:
        right[row["problem"]] += row["correct"]
    kept = [row["id"] for row in rows(output)]
    assert 0 < len(kept) < 24 and set(kept) == {problem for problem, number in right.items() if number == 0}
    assert {row["problem"]: row["correct"] for row in found["attempted"]} == right
    assert [row["problem"] for row in found["attempted"] if row["fate"] == "kept"] == kept, "the order is the task's"
    assert (found["kept"], found["dropped"], found["undecided"]) == (len(kept), 24 - len(kept), 0)
    assert found["sampling"] == {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 144, "seed": 0}
    assert found["model"]["name"] == "lab" and len(found["model"]["weights"]) == 64
    assert (found["attempts"], found["keep_correct"], found["split"]) == (2, [0, 0], "train")
    assert f"0 correct: {len(kept)} problems, kept" in out and "48 of 48 samples" in err


def test_the_output_is_data_for_training(call: Call, tmp_path: Path) -> None:
    output = tmp_path / "hard.jsonl"
    code, _, err = call("--output", str(output), *FEW)
    assert code == 0, err
    task = choose_task("kk", [f"task.data={output}"]).for_model("compact")
    ids = {problem.id for problem in task.problems("train", 1000, 0)}
    assert ids == {row["id"] for row in rows(output)}, "generated training problems are training problems there too"
    arguments = ["train.rollouts=1", "rollout.prompts=2", "rollout.max_new_tokens=20", "run.threads=1"]
    assert rlvr(["train", f"task.data={output}", f"run.dir={tmp_path / 'runs'}", "run.name=hard", *arguments]) == 0
    sampled = rows(tmp_path / "runs" / "hard" / "rollouts" / "rollout-000000.jsonl")
    assert {row["problem"] for row in sampled} <= ids


def test_another_range_or_more_attempts_sample_only_what_is_missing(call: Call, tmp_path: Path) -> None:
    hard, medium = tmp_path / "hard.jsonl", tmp_path / "medium.jsonl"
    assert call("--output", str(hard), *FEW)[0] == 0
    code, _, err = call("--output", str(medium), "--keep-correct", "1..", *FEW)
    assert code == 0 and "48 of 48 samples on disk from before" in err
    assert {row["id"] for row in rows(hard)}.isdisjoint({row["id"] for row in rows(medium)})
    assert len(rows(hard)) + len(rows(medium)) == 24
    code, _, err = call("--output", str(medium), "--overwrite", "--samples", "4", "--keep-correct", "1..3", *FEW)
    assert code == 0 and "48 of 96 samples on disk from before" in err
    found = account(medium)
    assert all((row["fate"] == "kept") == (1 <= row["correct"] <= 3) for row in found["attempted"])
    assert account(hard)["samples"] == found["samples"]


def test_an_interrupted_call_continues_and_ends_as_an_unbroken_one(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlvr_cli.evaluation import sample_store

    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    assert call("--output", str(whole), *FEW, f"run.dir={tmp_path / 'elsewhere'}")[0] == 0
    append = sample_store.append_jsonl
    written: list[int] = []

    def interrupt(path: Path, records: Any, *, durable: bool) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(len(records))
        append(path, records, durable=durable)

    monkeypatch.setattr(sample_store, "append_jsonl", interrupt)
    # The command line ends as interrupted commands do.
    assert call("--output", str(broken), *FEW)[0] == 130
    assert not broken.exists() and not broken.with_name("broken.jsonl.meta.json").exists()
    monkeypatch.setattr(sample_store, "append_jsonl", append)
    code, _, err = call("--output", str(broken), *FEW)
    assert code == 0 and f"{sum(written)} of 48 samples on disk from before" in err
    assert broken.read_bytes() == whole.read_bytes()
    first, second = account(whole), account(broken)
    assert {**first, "samples": ""} == {**second, "samples": ""}


def test_timeouts_are_undecided_and_counted(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = KnightsAndKnaves.judge
    calls: list[str] = []

    def sometimes(self: Any, problem: Any, response: str, *, truncated: bool = False) -> Verdict:
        calls.append(problem.id)
        verdict = judge(self, problem, response, truncated=truncated)
        if len(calls) % 4:
            return verdict
        return Verdict(float("nan"), dict.fromkeys(verdict.parts, 0.0), False, None, "timeout", scorable=False)

    monkeypatch.setattr(KnightsAndKnaves, "judge", sometimes)
    output = tmp_path / "hard.jsonl"
    code, out, err = call("--output", str(output), *FEW)
    assert code == 0, err
    found = account(output)
    assert found["unjudged_attempts"] == 12
    undecided = [row for row in found["attempted"] if row["fate"] == "undecided"]
    assert 0 < len(undecided) == found["undecided"]
    assert all(row["correct"] == 0 and row["unjudged"] == 1 for row in undecided)
    assert not {row["problem"] for row in undecided} & {row["id"] for row in rows(output)}
    assert f"undecided, so not kept: {len(undecided)}" in out


def test_no_problem_is_kept(call: Call, tmp_path: Path) -> None:
    output = tmp_path / "easy.jsonl"
    arguments = ("eval.max_new_tokens=2", "--keep-correct", "2")
    code, _, err = call("--output", str(output), *arguments, "--problems", "3", "run.threads=1")
    assert code == 1
    assert "no problem is kept: of 3 problems none has 2 of 2 attempts correct (3 with 0 correct)" in err
    assert list(tmp_path.glob("*.jsonl*")) == []


def test_the_data_are_never_overwritten_by_what_is_kept_of_them(call: Call, tmp_path: Path) -> None:
    output = tmp_path / "all.jsonl"
    assert call("--output", str(output), *FEW, "--keep-correct", "0..2")[0] == 0
    code, _, err = call("--output", str(output), "--overwrite", f"task.data={output}")
    assert code == 2 and "is the input file" in err
