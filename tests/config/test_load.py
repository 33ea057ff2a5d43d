"""Layers, presets, origins, and the way to disk and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli.config.keys import KEYS
from rlvr_cli.config.load import dump_yaml, load, load_config, preset_names
from rlvr_cli.config.schema import Config

REPOSITORY = Path(__file__).parents[2]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_each_layer_wins_over_the_one_below(tmp_path: Path) -> None:
    """Default 1e-6 < lab preset < first file < second file < override; the origin names the winner."""
    first = write(tmp_path, "first.yaml", "model: lab\noptimizer:\n  lr: 1e-3\n  eps: 1e-7\n")
    second = write(tmp_path, "second.yaml", "optimizer:\n  lr: 2e-3\n")
    preset = load_config().optimizer.lr
    assert preset != Config().optimizer.lr
    assert load_config(model="some/model").optimizer.lr == Config().optimizer.lr
    assert load_config([first]).optimizer.lr == 1e-3
    assert load_config([second, first]).optimizer.lr == 1e-3
    loaded = load([first, second], overrides=["optimizer.betas=[0.8, 0.9]"])
    assert loaded.config.optimizer.lr == 2e-3
    assert loaded.config.optimizer.eps == 1e-7
    assert loaded.origin("optimizer", "lr") == f"{second}:2"
    assert loaded.origin("optimizer", "eps") == f"{first}:4"
    assert loaded.origin("optimizer", "betas") == "override optimizer.betas=[0.8, 0.9]"
    assert loaded.origin("optimizer", "lr_schedule").startswith("preset models/lab.yaml:")
    assert loaded.origin("optimizer", "weight_decay") == "default"


def test_a_template_needs_no_quotes_of_yaml() -> None:
    config = load_config(task="own", overrides=["task.reward=r.py:f", "task.prompt_template={{ prompt }} Answer."])
    assert config.task.prompt_template == "{{ prompt }} Answer."  # type: ignore[attr-defined]


def test_an_option_wins_over_files_and_an_override_over_the_option(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "model: first/model\n")
    assert load_config([file]).model.name == "first/model"
    assert load_config([file], model="second/model").model.name == "second/model"
    assert load_config([file], model="second/model", overrides=["model=third/model"]).model.name == "third/model"


def test_another_model_drops_what_was_said_of_the_first(tmp_path: Path) -> None:
    """A revision belongs to the model it was written for."""
    file = write(tmp_path, "a.yaml", "model:\n  name: first/model\n  revision: v2\n  dtype: float32\n")
    assert load_config([file], model="first/model").model.revision == "v2"
    other = load([file], model="second/model")
    assert other.config.model.revision is None
    assert other.origin("model", "revision") == "default"


def test_text_survives_the_way_to_disk(tmp_path: Path) -> None:
    for text in [
        "yes",
        "null",
        "~",
        "1e-6",
        "007",
        "0x10",
        "1:30",
        "it's",
        'a "b"',
        "a: b",
        "# x",
        "- x",
        "{x}",
        "*x",
        "é",
        " x ",
    ]:
        config = Config.model_validate({"run": {"dir": text}, "model": {"name": text}})
        assert load_config([write(tmp_path, "a.yaml", dump_yaml(config))]) == config, text


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["optimizer.lr=1e-300", "optimizer.betas=[0.1, 0.30000000000000004]", "optimizer.eps=5e-324"],
        ["task.people={2: 0.125, 8: 0.875}", "eval.pass_at=[32, 1]", "run.seed=4294967295", "run.name=a.b+c_1"],
        ["model=Qwen/Qwen3-0.6B", "model.revision=main", "update.micro_batch=16", "run.threads=2"],
    ],
)
def test_a_resolved_configuration_reads_back_equal(overrides: list[str], tmp_path: Path) -> None:
    config = load_config(overrides=overrides)
    again = load_config([write(tmp_path, "config.yaml", dump_yaml(config))])
    assert again == config
    assert dump_yaml(again) == dump_yaml(config)


@pytest.mark.parametrize("section", ["model", "method", "task"])
def test_every_preset_loads(section: str) -> None:
    for name in preset_names(section):
        loaded = load(overrides=[f"{section}={name}"])
        assert getattr(loaded.config, section).name == name


# The folders next to them are for other programs, for `rlvr sweep`, and the papers', which have tests of their own.
EXAMPLES = sorted((REPOSITORY / "configs").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_loads(file: Path) -> None:
    load_config([file])


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbfrun:\r\n  seed: 7\r\n")
    loaded = load([file])
    assert loaded.config.run.seed == 7
    assert loaded.origin("run", "seed") == f"{file}:2"


@pytest.mark.parametrize("name", [name for name in KEYS.choices(("task",)) if name not in ("own", "rg", "mix")])
def test_each_task_loads_and_reads_back(name: str, tmp_path: Path) -> None:
    """The lab's preset speaks of the people of Knights & Knaves, which other tasks do not have."""
    loaded = load(task=name)
    assert loaded.config.task.name == name
    assert load_config([write(tmp_path, "config.yaml", dump_yaml(loaded.config))]) == loaded.config
    people = loaded.origin("task", "people")
    assert (people == "default") == (name != "kk")
    assert loaded.config.optimizer == load_config().optimizer


def test_another_task_drops_what_was_said_of_the_one_before(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "task:\n  name: countdown\n  numbers: {3: 1.0}\n  train_size: 7\n")
    assert load_config([file]).task.numbers == {3: 1.0}
    back = load([file], task="kk")
    assert back.config.task == load_config().task
    assert back.origin("task", "people").startswith("preset models/lab.yaml")
