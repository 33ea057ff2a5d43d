"""`rlvr eval --benchmark` from the command line: several benchmarks, suites, their tables, interruption."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.tasks.suites import SUITES

Call = Callable[..., tuple[int, str, str]]
MATH = ("math500", "college_math", "gaokao2023en", "minerva", "olympiadbench", "aime24", "aime25", "amc23")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)
    folder = tmp_path / "data"
    for name in (*(f"math/{name}" for name in MATH), "gsm8k/test"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        rows = [{"id": f"{name}-{i}", "question": f"{i} + 1?", "answer": str(i + 1)} for i in range(9)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def call(tmp_path: Path, models: list[Path], data: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    def invoke(names: str, *arguments: str) -> tuple[int, str, str]:
        line = ["eval", str(models[0]), "--benchmark", names, "--data-dir", str(data), f"run.dir={tmp_path / 'runs'}"]
        code = rlvr([*line, "eval.max_new_tokens=8", "run.threads=1", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


def test_several_benchmarks_and_their_table(call: Call, tmp_path: Path) -> None:
    code, out, _ = call(
        "math500,gsm8k", "--problems", "3", "-n", "2", "--format=json", "--output", str(tmp_path / "out")
    )
    assert code == 0
    content = json.loads(out)
    results = content["evaluations"]
    assert [(result["benchmark"], result["problems"]) for result in results] == [("math500", 3), ("gsm8k", 3)]
    assert [Path(result["folder"]) for result in results] == [tmp_path / "out" / name for name in ("math500", "gsm8k")]
    assert all((Path(result["folder"]) / "samples.jsonl").is_file() for result in results)
    (table,) = content["tables"]
    assert (table["suite"], [row["benchmark"] for row in table["benchmarks"]]) == (None, ["math500", "gsm8k"])


def test_a_suite_with_its_average(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("landscape", "--problems", "2")
    assert code == 0
    assert "suite landscape" in out
    (stored,) = (tmp_path / "runs" / "evals").glob("landscape-model-0-*/suite.json")
    content = json.loads(stored.read_text(encoding="utf-8"))
    assert [row["benchmark"] for row in content["benchmarks"]] == [s.benchmark for s in SUITES["landscape"].settings]
    assert all((row["samples"], row["figures"]) == (0, ["greedy"]) for row in content["benchmarks"])
    (average,) = content["averages"]
    mean = sum(row["metrics"]["greedy"]["value"] for row in content["benchmarks"]) / 6
    assert average["value"] == pytest.approx(mean)
    assert average["low"] <= average["value"] <= average["high"]
    assert average["problems"] == 12


def test_suites_keep_apart_what_they_ask_for_differently(call: Call, tmp_path: Path) -> None:
    """Both ask for MATH-500 at the same temperature, here at the same length too."""
    assert call("landscape,dgpo", "--problems", "1", "-n", "1")[0] == 0
    assert len(list((tmp_path / "runs" / "evals").glob("math500-*/metrics.json"))) == 2


def test_a_second_call_and_more_samples_use_what_is_there(call: Call) -> None:
    assert call("aime24", "--problems", "2", "-n", "2")[0] == 0
    code, _, err = call("aime24", "--problems", "2", "-n", "3")
    assert code == 0
    assert "6 of 8 samples on disk from before" in err


def test_an_interrupted_suite_continues(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from rlvr_cli.evaluation import sample_store

    append, written = sample_store.append_jsonl, [0]

    def interrupt(path: Path, rows: Any, *, durable: bool) -> None:
        append(path, rows, durable=durable)
        written[0] += 1
        if written[0] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(sample_store, "append_jsonl", interrupt)
    code, _, err = call("landscape", "--problems", "2", "eval.batch=1")
    assert code not in (0, 2)
    assert "the same command continues" in err
    assert not list((tmp_path / "runs").glob("**/suite.json"))
    monkeypatch.undo()
    code, out, err = call("landscape", "--problems", "2", "eval.batch=1")
    assert code == 0
    assert "2 of 2 samples on disk from before" in err
    assert "1 of 2 samples on disk from before" in err
    assert "suite landscape" in out


def test_bad_data_of_any_benchmark_stops_everything_before_a_sample(call: Call, data: Path, tmp_path: Path) -> None:
    (data / "math" / "minerva.jsonl").unlink()
    (data / "math" / "olympiadbench.jsonl").write_text('{"question": "?"}\n')
    code, _, err = call("landscape", "--problems", "2")
    assert code == 2
    assert "no math/minerva" in err
    assert "olympiadbench.jsonl:1: no field answer" in err
    assert not (tmp_path / "runs").exists()


def test_a_benchmarks_own_length_is_cut_to_the_models_positions(
    models: list[Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["eval", str(models[0]), "--benchmark", "math500", "--data-dir", str(data), f"run.dir={tmp_path / 'runs'}"]
    asked += ["--problems", "2", "-n", "1", "run.threads=1"]
    assert rlvr([*asked, "--format=json"]) == 0
    captured = capsys.readouterr()
    (result,) = json.loads(captured.out)["evaluations"] if "evaluations" in captured.out else [json.loads(captured.out)]
    length = result["sampling"]["max_new_tokens"]
    assert length < 512 and f"math500: prompts of up to {512 - length} tokens" in captured.err
    assert rlvr([*asked, "rollout.max_new_tokens=64"]) == 2
    assert "eval.max_new_tokens=" in capsys.readouterr().err


def test_lab_is_another_model_with_another_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several benchmarks, each has the lab's model that reads its task."""
    line = ["eval", "lab", "--benchmark", "kk-gen,countdown-gen,math-story-gen", "eval.greedy=false", "eval.problems=2"]
    assert rlvr([*line, "-n", "1", "--pass-at", "1", f"run.dir={tmp_path}", "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)["evaluations"]
    assert [one["label"] for one in found] == ["lab", "lab-countdown", "lab-math"]
