"""What holds of every lab: its words, its data, a small build of it, and that RL on its base raises the reward."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from experiments.lab import LABS
from experiments.lab import build as built
from experiments.lab.__main__ import main
from experiments.lab.form import ModelSize, Recipe
from experiments.lab.model import make_tokenizer
from rlvr_cli.cli.app import run
from rlvr_cli.config.load import choose_task, load, load_config
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.models.source import LAB_BASES
from rlvr_cli.tasks.countdown import Countdown

TINY = """
model: {hidden: 16, layers: 1, heads: 2, feed_forward: 32}
puzzles: 40
max_tokens: 48
phases: [{name: clean, steps: 3, lr: 1.0e-3, batch: 4, people: {2: 1.0}}]
"""


def tiny(name: str) -> Recipe:
    """The recipe with all of its phases, and next to nothing in them."""
    recipe = LABS[name].recipe()
    phases = tuple(phase.model_copy(update={"steps": 2, "batch": 2}) for phase in recipe.phases)
    size = ModelSize(hidden=16, layers=1, heads=2, feed_forward=32)
    return recipe.model_copy(update={"model": size, "puzzles": 60, "phases": phases})


@pytest.mark.parametrize("name", LABS)
def test_the_tokenizer_gives_every_prompt_and_trace_back_word_for_word(name: str) -> None:
    lab, recipe, rng = LABS[name], tiny(name), random.Random(0)
    tokenizer = make_tokenizer(lab.vocabulary())
    for phase in recipe.phases:
        for pool in lab.pools(recipe, 0).values():
            for problem in pool:
                for text in (lab.prompt(problem), next(lab.traces(problem, phase, rng))):
                    ids = tokenizer(text)["input_ids"]
                    assert tokenizer.unk_token_id not in ids and tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", LABS)
def test_the_shipped_tokenizer_has_the_words_of_the_form(name: str) -> None:
    shipped = AutoTokenizer.from_pretrained(LAB_BASES / name)
    assert shipped.vocab == make_tokenizer(LABS[name].vocabulary()).vocab


@pytest.mark.parametrize("name", LABS)
def test_the_data_depends_on_the_seed_alone(name: str) -> None:
    lab, recipe = LABS[name], tiny(name)
    first, again, other = (lab.data_hash(lab.pools(recipe, seed)) for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize("name", LABS)
def test_a_build_is_a_model_that_its_task_can_be_evaluated_with(name: str, tmp_path: Path) -> None:
    made = built.build(tmp_path / "base", lab=LABS[name], recipe=tiny(name), seed=0, dev_count=4, samples=1)
    assert made["lab"] == name and 0.0 <= made["dev"]["sampled"] <= 1.0
    again = built.build(tmp_path / "again", lab=LABS[name], recipe=tiny(name), seed=0, dev_count=4, samples=1)
    assert made["weights_sha256"] == again["weights_sha256"]


@pytest.mark.parametrize("name", LABS)
def test_a_recipe_file_is_read_with_the_keys_of_its_lab(name: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text("puzzles: 60\n")
    assert LABS[name].read_recipe(file) == LABS[name].recipe().model_copy(update={"puzzles": 60})


def test_a_build_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    command = ["kk", "--output", str(tmp_path / "base"), "--recipe", str(tmp_path / "tiny.yaml")]
    assert main(command) == 0
    assert "steps" not in capsys.readouterr().err
    trained_as = load_config([tmp_path / "base" / "train.yaml"], model=str(tmp_path / "base"))
    assert trained_as.task == load_config(model="lab").task and trained_as.optimizer == load_config().optimizer
    assert main(command) == 2
    assert "is not an empty folder" in capsys.readouterr().err


def test_without_a_model_a_task_is_what_any_model_is_given() -> None:
    assert choose_task("countdown") == Countdown()
    assert choose_task("countdown", model="lab").settings["largest"] == 20
    assert load_config(task="countdown", model="./my-model").task == Countdown()


def test_a_run_says_which_lab_it_trained() -> None:
    loaded = load(task="countdown")
    assert loaded.config.model.name == "lab-countdown"
    assert loaded.origin("model", "name") == "preset models/lab-countdown.yaml"
    assert load_config(task="countdown", overrides=["task.largest=30"]).task.settings["largest"] == 30
    assert [load_config(task=task).model.name for task in ("kk", "hitab")] == ["lab", "lab"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_twelve_rollouts_raise_the_reward(name: str, tmp_path: Path) -> None:
    assert run(["train", "--task", name, f"run.dir={tmp_path}", "run.name=run", "train.rollouts=12"]) == 0
    accuracy = [step["accuracy"] for step in read_jsonl(tmp_path / "run" / "metrics.jsonl")]
    assert sum(accuracy[-4:]) / 4 > sum(accuracy[:2]) / 2 + 0.1
