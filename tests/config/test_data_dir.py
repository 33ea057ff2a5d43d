"""RLVR_DATA_DIR is a layer of the configuration: it has a say where a data set is named and nothing else speaks."""

import pytest

from rlvr_cli.config.load import dump_yaml, load, load_config
from rlvr_cli.core.errors import UserError

ORIGIN = "environment RLVR_DATA_DIR"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("RLVR_DATA_DIR", "/env")


def data_dir(*overrides, files=()):
    loaded = load(files, overrides=["task=math", *overrides])
    return loaded.config.task.data_dir, loaded.origin("task", "data_dir")


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_it_is_the_folder_of_a_named_set_and_says_so():
    assert data_dir("task.data=dsr_uniform") == ("/env", ORIGIN)


@pytest.mark.parametrize("data", [[], ["task.data=owner/name"], ["task.data=./dsr_uniform"], ["task.data=rows.jsonl"]])
def test_it_has_no_say_without_a_named_set(data):
    assert data_dir(*data) == (None, "default")


def test_a_set_that_is_a_tasks_default_is_a_named_one():
    loaded = load(overrides=["task=gsm8k"])
    assert (loaded.config.task.data, loaded.config.task.data_dir) == ("gsm8k", "/env")
    assert load_config(overrides=["task=gsm8k", "task.data_dir=null"]).task.data_dir is None
    assert load_config(overrides=["task=math", "task.data=math-story-gen"]).task.data_dir is None


def test_whatever_else_sets_the_folder_wins(tmp_path):
    assert data_dir("task.data=math500", "task.data_dir=mine")[0] == "mine"
    assert data_dir("task.data=math500", "task.data_dir=null") == (None, "override task.data_dir=null")
    assert data_dir("task.data_dir=null", "task.data=math500")[0] is None
    file = write(tmp_path / "a.yaml", "task:\n  name: math\n  data: simplerl\n  data_dir: theirs\n")
    assert data_dir(files=[file]) == ("theirs", f"{file}:4")
    assert data_dir("task.data=math500", files=[file])[0] == "theirs"


def test_a_stored_configuration_reads_back_as_it_was_whatever_the_variable_says(tmp_path, monkeypatch):
    stored = write(tmp_path / "with.yaml", dump_yaml(load_config(overrides=["task=math", "task.data=dsr_uniform"])))
    monkeypatch.delenv("RLVR_DATA_DIR")
    hub = write(tmp_path / "hub.yaml", dump_yaml(load_config(overrides=["task=math", "task.data=simplerl"])))
    monkeypatch.setenv("RLVR_DATA_DIR", "/elsewhere")
    assert load_config([stored]).task.data_dir == "/env"
    assert load_config([hub]).task.data_dir is None


def test_the_null_of_a_run_says_nothing_of_a_set_that_is_named_above_it(tmp_path):
    run = write(tmp_path / "config.yaml", dump_yaml(load_config(overrides=["task=math"])))
    assert data_dir("task.data=math500", files=[run]) == ("/env", ORIGIN)
    later = write(tmp_path / "later.yaml", "task:\n  name: math\n  data: math500\n")
    assert data_dir(files=[run, later]) == ("/env", ORIGIN)


def test_another_tasks_set_is_refused_with_the_task_that_it_belongs_to():
    with pytest.raises(UserError, match=r"data set of the task gsm8k, and the task is math\. Set task=gsm8k"):
        data_dir("task.data=gsm8k")
    assert load_config(overrides=["task=gsm8k", "task.data=gsm8k"]).task.data == "gsm8k"
    assert data_dir("task.data=./gsm8k")[0] is None
