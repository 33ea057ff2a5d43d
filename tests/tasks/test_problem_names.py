"""The name of a public data set means that set, and generated problems have a name of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.launch.checks import default_name
from rlvr_cli.tasks.gsm8k import GSM8K
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.sets import data_sets, problems_name

# The task `own` has the data that it is given, and `rg` those of a package.
TASKS = [name for name in KEYS.choices(("task",)) if name not in ("own", "rg")]
GENERATED = {"kk": "kk-gen", "countdown": "countdown-gen", "math": "math-story-gen"}


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)


def test_tasks_whose_problems_are_made_up_need_no_data_and_the_others_mean_the_public_set() -> None:
    found = {task: load_config(task=task).task.data for task in TASKS}
    assert found == {
        "kk": "kk-gen",
        "countdown": "countdown-gen",
        "math": "math-story-gen",  # what its lab reads
        "gsm8k": "gsm8k",
        "hitab": "hitab",
    }


@pytest.mark.parametrize("task", GENERATED)
def test_generated_problems_are_a_set_of_the_task_and_null_is_their_old_name(task: str) -> None:
    named = load_config(overrides=[f"task={task}", f"task.data={GENERATED[task]}"]).task
    assert load_config(overrides=[f"task={task}", "task.data=null"]).task == named
    assert named.for_model("logic_rl").settings["data"] == GENERATED[task]
    with pytest.raises(UserError, match=f"is a data set of the task {task}, and the task is"):
        load_config(overrides=[f"task={'kk' if task != 'kk' else 'math'}", f"task.data={GENERATED[task]}"])


def test_a_public_set_that_is_not_there_says_how_to_get_it_and_what_is_generated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"run.dir={tmp_path / 'runs'}"
    for line in (["train", "--task", "hitab", place], ["eval", "lab", "--benchmark", "hitab", place]):
        assert run(line) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "--data-dir" in said
    assert run(["eval", "lab", "--benchmark", "gsm8k", "--data-dir", str(tmp_path), place]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "openai/gsm8k" in said
    assert not (tmp_path / "runs").exists()


def test_the_hubs_error_names_the_folder_and_the_generated_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    for config, generated in ((GSM8K(), ""), (KnightsAndKnaves(data="kk"), "kk-gen")):
        with pytest.raises(UserError, match=rf"--data-dir.*{generated}"):
            config.for_model("logic_rl").problems("test", 4, 0)


def test_problems_never_go_by_the_name_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gsm8k").mkdir()
    assert problems_name("kk", "kk-gen") == "kk-gen"
    assert problems_name("gsm8k", "gsm8k") == problems_name("gsm8k", "openai/gsm8k") == "gsm8k"
    assert problems_name("math", "openai/gsm8k") == "openai/gsm8k"
    for data in ("gsm8k.jsonl", "./gsm8k", str(tmp_path / "gsm8k"), "x/math500.test.jsonl.gz"):
        assert problems_name("gsm8k", data) not in data_sets()


def test_the_default_name_of_a_run_says_which_problems(tmp_path: Path) -> None:
    def name(*overrides: str) -> str:
        return default_name(load_config(overrides=overrides))

    assert name() == "grpo-kk-gen-lab-s0"
    assert name("task.data=kk") == "grpo-kk-lab-s0"
    assert name("task=math", "task.data=owner/rows", "run.seed=3") == "grpo-owner-rows-lab-math-s3"
    assert name("task=math", f"task.data={tmp_path / 'my.train.jsonl'}") == "grpo-my.train.jsonl-lab-math-s0"


@pytest.mark.parametrize("task", GENERATED)
def test_show_and_generate_say_that_the_problems_are_generated(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tasks", "show", task, "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == GENERATED[task]
    assert run(["tasks", "generate", task, "--problems", "1", "--output", str(tmp_path / "a.jsonl")]) == 0
    assert f"problems of {GENERATED[task]}" in capsys.readouterr().out


def test_a_data_set_that_is_given_as_a_task_is_told_where_it_belongs() -> None:
    for name, task in (("kk-gen", "kk"), ("math500", "math")):
        with pytest.raises(UserError, match=rf"unknown task.*task={task} task\.data={name}\."):
            load_config(task=name)
