"""--data-dir of train, plan and tasks, and the list of data sets."""

import json
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.cli.train import _next_command
from rlvr_cli.config.load import load_config

DIRECTIONS = ["--task", "math", "task.data=dsr_uniform"]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)


@pytest.fixture
def folder(tmp_path):
    file = tmp_path / "train" / "dsr_uniform.jsonl"
    file.parent.mkdir()
    file.write_text("".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(40)))
    return tmp_path


def outcome(capsys, *arguments):
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("command", ["plan", "train"])
def test_training_is_refused_before_it_starts_without_a_folder_that_has_the_set(command, capsys, tmp_path):
    if command == "train":
        code, _, error = outcome(capsys, command, *DIRECTIONS)
        assert code == 2 and "train/dsr_uniform.jsonl" in error and "Nothing was started" in error
    code, _, error = outcome(capsys, command, *DIRECTIONS, "--data-dir", tmp_path)
    assert code == 2 and f"task.data_dir='{tmp_path}': no train/dsr_uniform" in error
    code, _, error = outcome(capsys, command, "--task", "math", "task.data=math500", "--data-dir", tmp_path)
    assert code == 2 and "math500: has only test problems" in error


def test_plan_counts_the_problems_that_are_on_this_machine(capsys, folder):
    code, shown, _ = outcome(capsys, "plan", *DIRECTIONS, "--data-dir", folder)
    assert code == 0 and "of dsr_uniform (task.data), each seen" in shown
    code, shown, _ = outcome(capsys, "plan", *DIRECTIONS, f"task.data_dir={folder}", "--format=json")
    plan = json.loads(shown)
    assert plan["problems_from"] == "dsr_uniform" and 30 < plan["problems"] <= 40
    code, _, error = outcome(capsys, "plan", *DIRECTIONS, "task.data_dir=x", "--data-dir", folder)
    assert code == 2 and "cannot be combined. Remove one" in error


def test_the_folder_of_the_environment_shows_in_the_origins(capsys, folder, monkeypatch):
    monkeypatch.setenv("RLVR_DATA_DIR", str(folder))
    code, shown, _ = outcome(capsys, "config", "show", *DIRECTIONS, "--origins", "--format=json")
    row = next(one for one in json.loads(shown) if one["key"] == "task.data_dir")
    assert (code, row["value"], row["origin"]) == (0, str(folder), "environment RLVR_DATA_DIR")


def test_sets_lists_every_data_set(capsys, folder):
    code, shown, _ = outcome(capsys, "tasks", "sets")
    assert code == 0 and all(word in shown for word in ("gaokao2023en", "numina_math", "openai/gsm8k", "yes"))
    code, shown, _ = outcome(capsys, "tasks", "sets", "--data-dir", folder, "--format=json")
    sets = {one["name"]: one for one in json.loads(shown)["sets"]}
    assert sets["dsr_uniform"]["rows"] == {"train": 40} and sets["gsm8k"]["rows"] == {"train": None, "test": None}
    code, _, error = outcome(capsys, "tasks", "sets", "--data-dir", folder / "none")
    assert code == 2 and "no such folder" in error


@pytest.mark.parametrize(
    ("task", "data", "end"),
    [
        ("math", "dsr_uniform", "--pass-at 32 --split dev"),
        ("math", "math", "--pass-at 32"),
        ("math", "hard.train.jsonl", "--pass-at 32 --split dev"),
        ("math", "hard.jsonl", "--pass-at 32"),
        ("kk", None, "--pass-at 32"),
    ],
)
def test_the_evaluation_that_a_finished_run_names_has_problems(task, data, end):
    config = load_config(task=task, overrides=[f"task.data={data}"] if data else [])
    assert _next_command(config, Path("runs/one")) == f"next: rlvr eval runs/one {end}"
