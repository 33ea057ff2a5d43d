"""Data sets by name: which there are, where they are looked for, which problems they give, and what is refused."""

import pytest

from rlvr_cli.config.checks import check_training
from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import data as task_data
from rlvr_cli.tasks.gsm8k import GSM8K
from rlvr_cli.tasks.math import MathTask
from rlvr_cli.tasks.sets import data_sets, task_kinds
from tests.tasks.rows import write

GENERATED = {"kk": "kk-gen", "countdown": "countdown-gen", "math": "math-story-gen"}


def row(number):
    return {"id": f"row-{number}", "question": f"What is {number} + 1?", "answer": str(number + 1)}


def ids(config, split, count=100_000):
    return {problem.id for problem in config.problems(split, count, 0)}


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "train" / "dsr_uniform.jsonl.gz", map(row, range(400)))
    write(tmp_path / "math" / "math500.jsonl", map(row, range(50)))
    write(tmp_path / "gsm8k" / "train.jsonl", map(row, range(100)))
    write(tmp_path / "gsm8k" / "test.jsonl", map(row, range(100, 120)))
    return tmp_path


def test_a_task_means_its_public_set_and_the_lab_generated_problems_which_have_a_name_of_their_own(monkeypatch):
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)
    without_default = ("own", "rg", "mix")
    found = {task: load_config(task=task).task.data for task in KEYS.choices(("task",)) if task not in without_default}
    assert found == {**GENERATED, "gpqa": "gpqa_diamond", "gsm8k": "gsm8k", "hitab": "hitab"}
    for task, name in GENERATED.items():
        named = load_config(overrides=[f"task={task}", f"task.data={name}"]).task
        assert load_config(overrides=[f"task={task}", "task.data=null"]).task == named
        with pytest.raises(UserError, match=f"is a data set of the task {task}, and the task is"):
            load_config(overrides=[f"task={'kk' if task != 'kk' else 'math'}", f"task.data={name}"])
    for name, task in (("kk-gen", "kk"), ("math500", "math")):
        with pytest.raises(UserError, match=rf"unknown task.*task={task} task\.data={name}\."):
            load_config(task=name)


def location(name, split, folder):
    return task_data.locate_data(task_kinds()[data_sets()[name].task].sets, name, split, folder)


def test_a_location_is_a_file_in_the_folder_or_the_hub_id(folder):
    assert location("gsm8k", "test", folder) == str(folder / "gsm8k" / "test.jsonl")
    assert location("dsr_uniform", "train", folder) == str(folder / "train" / "dsr_uniform.jsonl.gz")
    assert location("dsr_uniform", "dev", folder) == location("dsr_uniform", "train", folder)
    assert location("gsm8k", "train", None) == "openai/gsm8k"
    for name, split, place, message in (
        ("math500", "train", folder, "has only test problems.*dapo_math_17k"),
        ("dsr_uniform", "test", None, "has only train problems.*validation.split=dev.*math500"),
        ("hitab", "train", None, "not on the hub.*RLVR_DATA_DIR"),
        ("aime24", "test", folder, "no math/aime24 .*HuggingFaceH4/aime_2024 from the hub, set task.data_dir=null"),
        ("countdown", "train", folder, "no countdown/train.*countdown-gen"),
        ("gsm8k", "test", folder / "none", "no such folder"),
    ):
        with pytest.raises(UserError, match=message):
            location(name, split, place)


def test_a_training_set_gives_train_and_dev_and_a_benchmark_all_its_rows_as_test(folder, monkeypatch):
    named = MathTask(data="dsr_uniform", data_dir=str(folder))
    train, dev = ids(named, "train"), ids(named, "dev")
    assert len(train) + len(dev) == 400 and not train & dev and 30 < len(dev) < 75
    assert ids(named, "all") == train | dev
    assert len(ids(MathTask(data="math500", data_dir=str(folder)), "test")) == 50
    for data, split in (("dsr_uniform", "test"), ("math500", "train"), ("math500", "dev")):
        with pytest.raises(UserError, match="has only t"):
            ids(MathTask(data=data, data_dir=str(folder)), split)
    by_path, by_name = GSM8K(data=str(folder / "gsm8k")), GSM8K(data="gsm8k", data_dir=str(folder))
    assert all(ids(by_path, split) == ids(by_name, split) for split in ("train", "dev", "test", "all"))
    assert ids(by_name, "test") == {f"row-{number}" for number in range(100, 120)} and len(ids(by_name, "all")) == 120
    # The name wins over a folder of that name, which is written with a dot.
    monkeypatch.chdir(folder)
    write(folder / "other" / "gsm8k" / "test.jsonl", map(row, range(7)))
    assert len(ids(GSM8K(data="gsm8k", data_dir="other"), "test")) == 7
    assert len(ids(GSM8K(data="./gsm8k", data_dir="other"), "test")) == 20
    # What a task records is the set and not its folder.
    assert MathTask(data="math500", data_dir="d").settings == MathTask(data="math500", data_dir="moved").settings


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task=math", "task.data=math500"], "has only test problems"),
        (["task=hitab", "task.data=hitab"], "not on the hub"),
        (["task=math", "task.data=simplerl", "task.data_dir=/no/such"], "no such folder"),
        (["task=math", "task.data=dsr_unifrom"], "Did you mean `dsr_uniform`"),
        (["task=math", "task.data=simplerl", "validation.every=1"], "has only train problems.*validation.split=dev"),
        (["task=math", "task.data_dir=/tmp"], "math-story-gen is generated"),
        (["task=math", "task.data=owner/name", "task.data_dir=/tmp"], "owner/name is not one"),
    ],
)
def test_training_without_training_problems_is_refused_before_anything_is_loaded(overrides, message, monkeypatch):
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)
    with pytest.raises(UserError, match=message):
        check_training(load_config(overrides=overrides))
