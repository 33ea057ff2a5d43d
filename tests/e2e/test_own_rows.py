"""A run on rows of one's own: from another folder than that of its start, and evaluated on what it was trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rlvr_cli
from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import load_config
from rlvr_cli.models.source import PRESETS
from rlvr_cli.runs.folder import RunDir

TINY = [
    *("rollout.prompts=2", "rollout.group_size=4", "rollout.max_new_tokens=8", "train.rollouts=1", "run.threads=1"),
    *("task.held_out=0.2", "train.on_no_signal=off", "eval.samples=1", "eval.pass_at=[1]", "eval.max_new_tokens=4"),
]
EVAL = ["eval.samples=1", "eval.pass_at=[1]", "eval.max_new_tokens=4"]
ROWS = 40


def write_rows(path: Path, numbers: range, **more: Any) -> None:
    rows = [{"prompt": f"What is {number} plus 1 ?", **more} for number in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, a reward and the run `a` on them; the model lies next to the folder."""
    folder = tmp_path_factory.mktemp("project") / "work"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        shutil.copytree(PRESETS["lab"], "../model")
        write_rows(Path("rows.jsonl"), range(ROWS))
        Path("half.py").write_text("def half(completions, **columns):\n    return [0.5] * len(completions)\n")
        words = ["--model", "../model", "--data", "rows.jsonl", "--reward", "half.py:half", "run.name=a", *TINY]
        assert rlvr(["train", *words]) == 0
        assert rlvr(["export", "a", "--output", "../exported"]) == 0
    return folder


@pytest.fixture
def project(started: Path, tmp_path: Path) -> Path:
    """A copy for one test, whose run says that it was started there."""
    folder = Path(shutil.copytree(started.parent, tmp_path / "project")) / "work"
    RunDir(folder / "runs" / "a").update_manifest(started_in=str(folder))
    return folder


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    def invoke(*words: str, code: int = 0) -> tuple[dict[str, Any], str]:
        capsys.readouterr()
        assert rlvr([*words, "--json"] if words[0] == "eval" else list(words)) == code
        output = capsys.readouterr()
        return (json.loads(output.out) if words[0] == "eval" and code == 0 else {}), output.err

    return invoke


def trained_rows(run: Path) -> int:
    """How many of the rows are training rows by the task's own division."""
    task = load_config([run / "config.yaml"]).task
    return len(task.problems("train", ROWS, 0))


def test_a_run_is_evaluated_exported_and_extended_from_another_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    # A file of the same name must not be taken for the run's.
    write_rows(Path("rows.jsonl"), range(100, 120))
    run = project / "runs" / "a"
    there = Path("../project/work/runs/a")
    first, _ = call("eval", str(there))
    assert (first["split"], first["benchmark"]) == ("test", "rows.jsonl")
    call("export", str(there), "--output", "out")
    call("train", "--resume", str(there), "train.rollouts=2")
    assert rlvr_cli.resume(there, settings={"train.rollouts": 3}, quiet=True) == there
    assert RunDir(run).read_manifest()["step"] == 3
    written = load_config([run / "config.yaml"])
    assert (written.task.data, written.model.name, written.train.rollouts) == ("rows.jsonl", "../model", 3)
    call("train", "-c", str(there / "config.yaml"), "run.name=b")
    assert RunDir(Path("runs/b")).read_manifest()["status"] == "finished"
    # The same evaluation, wherever it is asked for.
    second, _ = call("eval", str(there))
    monkeypatch.chdir(project)
    third, err = call("eval", "a")
    assert Path(third["folder"]).name == Path(second["folder"]).name and "on disk from before" in err


def test_a_project_that_was_moved_goes_on_from_its_own_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    moved = project.rename(project.parent / "moved")
    for words in (("eval", "moved/runs/a"), ("train", "--resume", "moved/runs/a", "train.rollouts=2")):
        monkeypatch.chdir(project.parent)
        _, err = call(*words, code=2)
        assert "no such" in err
        monkeypatch.chdir(moved)
        call(words[0], *(word.replace("moved/", "") for word in words[1:]))


def test_the_rows_that_a_run_was_trained_on_mean_its_test_rows(
    project: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    monkeypatch.chdir(project)
    shutil.copy("rows.jsonl", "same.jsonl")
    plain, err = call("eval", "a")
    assert "training problems" not in err
    for data in ("rows.jsonl", "./rows.jsonl", str(Path("rows.jsonl").resolve())):
        result, err = call("eval", "a", "--data", data)
        assert result == plain and "the run was trained on rows of this file" in err
    assert "trained_on" not in plain
    trained = trained_rows(Path("runs/a"))
    assert 0 < trained < ROWS
    for words in (["--data", "rows.jsonl", "--split", "all"], ["--data", "same.jsonl"]):
        result, err = call("eval", "a", *words)
        assert (result["split"], result["trained_on"]) == ("all", trained)
        assert f"{trained} of these {ROWS} problems are training problems of a; --split test leaves out" in err
    _, err = call("eval", "a", "--data", "same.jsonl", "--split", "test")
    assert "training problems" not in err


def test_training_rows_are_known_again_by_their_wording_in_every_form_of_the_model(
    project: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    """Of another file with other ids and answers; of a checkpoint, one that was copied, and the exported model."""
    monkeypatch.chdir(project)
    write_rows(Path("other.jsonl"), range(-5, ROWS), answer="x")
    trained = trained_rows(Path("runs/a"))
    warning = f"{trained} of these {ROWS + 5} problems are training problems of "
    as_task = ["--reward", "half.py:half", "task.held_out=0.2"]
    shutil.copytree("runs/a/checkpoints/step-1", "step-1")
    for model, words in (
        ("a", []),
        ("runs/a/checkpoints/step-1", []),
        ("step-1", as_task),
        ("../exported", as_task),
    ):
        result, err = call("eval", model, "--data", "other.jsonl", *words, *EVAL)
        assert result["trained_on"] == trained and warning in err
    result, err = call("eval", "../model", "--against", "../exported", "--data", "other.jsonl", *as_task, *EVAL)
    assert "trained_on" not in result and f"{warning}exported (--against)" in err
    # What is trained further was trained on these rows too.
    write_rows(Path("new.jsonl"), range(200, 230))
    call("train", "--model", "../exported", "--data", "new.jsonl", "--reward", "half.py:half", "run.name=b", *TINY)
    result, _ = call("eval", "b", "--data", "other.jsonl")
    assert result["trained_on"] == trained
