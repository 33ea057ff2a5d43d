"""--data-dir of train, plan and tasks, and the list of data sets."""

import json
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.cli.train import _next
from rlvr_cli.config.load import load_config
from tests.recipes import loaded

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
    assert code == 2 and "math500: has test problems only" in error


def test_plan_needs_no_problems_and_says_that_training_does(capsys):
    code, shown, _ = outcome(capsys, "plan", *DIRECTIONS)
    assert code == 0 and "`rlvr train` needs the problems of dsr_uniform (task.data)" in shown
    code, shown, _ = outcome(capsys, "plan", *DIRECTIONS, "--method", "grpo,dapo", "rollout.top_k=20")
    assert code == 0 and shown.count("needs the problems of dsr_uniform") == shown.count("it is biased") == 1


def test_plan_counts_the_problems_that_are_on_this_machine(capsys, folder):
    code, shown, _ = outcome(capsys, "plan", *DIRECTIONS, "--data-dir", folder)
    assert code == 0 and "of dsr_uniform (task.data), each seen" in shown
    code, shown, _ = outcome(capsys, "plan", *DIRECTIONS, f"task.data_dir={folder}", "--format=json")
    plan = json.loads(shown)
    assert plan["problems_from"] == "dsr_uniform" and 30 < plan["problems"] <= 40
    code, _, error = outcome(capsys, "plan", *DIRECTIONS, "task.data_dir=x", "--data-dir", folder)
    assert code == 2 and "set the same thing" in error


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


def test_show_and_generate_take_problems_of_a_named_set(capsys, folder, tmp_path):
    code, shown, _ = outcome(capsys, "tasks", "show", "math", "task.data=dsr_uniform", f"task.data_dir={folder}")
    assert code == 0 and "+ 1?" in shown
    out = tmp_path / "out.jsonl"
    arguments = ["math", "task.data=dsr_uniform", f"task.data_dir={folder}", "--output", out, "--problems", 3]
    assert outcome(capsys, "tasks", "generate", *arguments)[0] == 0
    assert len(out.read_text().splitlines()) == 3


@pytest.mark.parametrize("command", ["show", "generate", "filter"])
def test_a_folder_without_a_name_to_look_for_is_no_reason_to_generate(capsys, folder, tmp_path, command):
    more = {"show": [], "generate": ["--output", "out.jsonl"], "filter": ["--output", "out.jsonl", "--model", "lab"]}
    code, _, error = outcome(capsys, "tasks", command, "math", f"task.data_dir={folder}", *more[command])
    assert code == 2, error
    assert "the problems are generated (math-story-gen). Set task.data to one of math, dapo_math_17k" in error


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
    assert _next(config, Path("runs/one")) == f"next: rlvr eval runs/one {end}"


@pytest.mark.parametrize(("names", "proposed"), [("train", "report"), ("train dev", "eval"), ("train test", "eval")])
def test_the_next_command_fits_the_files_of_a_folder(names, proposed, tmp_path):
    for name in names.split():
        (tmp_path / f"{name}.jsonl").write_text('{"question": "1 + 1", "answer": "#### 2"}\n')
    said = _next(load_config(task="gsm8k", overrides=[f"task.data={tmp_path}"]), Path("runs/one"))
    assert said.startswith(f"next: rlvr {proposed} runs/one") and ("--split dev" in said) == ("dev" in names)


@pytest.mark.parametrize("row", ["landscape/table-1/simplerl-qwen2.5-7b-grpo", "ar_lopti/figure-4/qwen2.5-3b-grpo"])
def test_a_recipes_run_is_evaluated_as_the_recipe_says(row):
    """Greedy completions, on a suite or on the task's own test problems: 32 samples would be refused."""
    assert _next(loaded(row), Path("runs/one")) == "next: rlvr eval runs/one"
