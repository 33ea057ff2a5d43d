"""`rlvr lab build` from the command line: a model folder, and one message for bad input."""

import functools
import json

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.config.load import load_config
from rlvr_cli.lab.build import measure

TINY = """
model: {hidden: 16, layers: 1, heads: 2, feed_forward: 32}
puzzles: 40
phases: [{name: clean, steps: 3, lr: 1.0e-3, batch: 4, people: {3: 1.0}}]
"""


def test_build_writes_a_model_folder_and_reports_it(tmp_path, capsys, monkeypatch):
    few = functools.partial(measure, count=4, samples=1)
    monkeypatch.setattr("rlvr_cli.lab.build.measure", lambda *model, count, samples, **rest: few(*model, **rest))
    (tmp_path / "tiny.yaml").write_text(TINY)
    arguments = [
        "lab",
        "build",
        "--output",
        str(tmp_path / "base"),
        "--recipe",
        str(tmp_path / "tiny.yaml"),
        "--format=json",
    ]
    assert run(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["recipe"]["puzzles"] == 40 and printed["against_shipped"] == []
    names = {path.name for path in (tmp_path / "base").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"} <= names
    trained_as = load_config([tmp_path / "base" / "train.yaml"], model=str(tmp_path / "base"))
    assert trained_as.task == load_config(model="lab").task and trained_as.optimizer == load_config().optimizer
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "."], "not an empty folder"),
        (["--output", "new", "--recipe", "missing.yaml"], "missing.yaml  no such file"),
        (["--output", "new", "--recipe", "bad.yaml"], "bad.yaml:1  puzles: unknown key. Did you mean `puzzles`?"),
        (["--output", "bad.yaml/new"], "cannot write in"),
    ],
)
def test_bad_input_is_one_message_and_starts_nothing(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("puzles: 3\n")
    assert run(["lab", "build", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and "Nothing was started." in error
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]
