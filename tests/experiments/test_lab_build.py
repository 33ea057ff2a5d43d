"""Lab builds: recipes, tokenizer, training data, repeatable builds, and the base that ships."""

import json
import random

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from experiments.lab import LABS
from experiments.lab import build as built
from experiments.lab.build import draw_example, learning_rate, measure
from experiments.lab.form import Phase
from experiments.lab.model import make_tokenizer
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.models.source import LAB_BASES, PRESETS
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.tasks.kk_puzzles import generate_puzzle, split_of, structure_key

KK = LABS["kk"]
TINY = KK.recipe.model_validate(
    {
        "model": {"hidden": 16, "layers": 1, "heads": 2, "feed_forward": 32},
        "puzzles": 60,
        "phases": [{"name": "clean", "steps": 20, "lr": 1e-3, "batch": 8, "people": {2: 0.5, 3: 0.5}}],
    }
)


def test_the_tokenizer_gives_every_prompt_and_trace_back_word_for_word():
    tokenizer, rng = make_tokenizer(compact.vocabulary()), random.Random(0)
    for i in range(60):
        puzzle = generate_puzzle(rng, people=2 + i % 4, depth=1 + i % 2)
        for text in (compact.prompt(puzzle), compact.trace(puzzle, rng)):
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.unk_token_id not in ids and len(ids) == len(text.split())
            assert tokenizer.decode(ids) == text


def test_training_puzzles_are_of_the_train_split_and_depend_on_the_seed_alone():
    pools = KK.pools(TINY, seed=0)
    for pool in pools.values():
        assert {split_of(structure_key(puzzle.statements)) for puzzle in pool} == {"train"}
    assert KK.data_hash(pools) == KK.data_hash(KK.pools(TINY, seed=0)) != KK.data_hash(KK.pools(TINY, seed=1))


def test_only_the_trace_is_trained_on():
    tokenizer = make_tokenizer(compact.vocabulary())
    example = draw_example(KK, KK.pools(TINY, 0), TINY.phases[0], tokenizer, 128, random.Random(0))
    assert tokenizer.decode(example.ids[: example.prompt]).endswith("? <think>")
    assert tokenizer.decode(example.ids[example.prompt :]).endswith("</answer> </s>")


def test_a_phase_answers_at_once_in_the_share_that_it_names():
    tokenizer, pools = make_tokenizer(compact.vocabulary()), KK.pools(TINY, 0)
    phase = TINY.phases[0].model_copy(update={"no_think": 0.25})
    rng = random.Random(0)
    drawn = [draw_example(KK, pools, phase, tokenizer, 128, rng) for _ in range(800)]
    traces = [tokenizer.decode(example.ids[example.prompt :]).split() for example in drawn]
    at_once = [trace for trace in traces if trace[0] == "</think>"]
    assert 150 < len(at_once) < 250
    assert all(compact.format_ok(" ".join(trace)) and len(trace) == 5 for trace in at_once)
    assert len({trace[2] for trace in at_once}) == 4 + 8, "every guess for two and for three people"


def test_a_recipe_without_answers_at_once_keeps_the_fingerprint_that_it_had():
    dumped = KK.recipe().model_dump(mode="json")
    assert all("no_think" not in phase for phase in dumped["phases"])
    mixed = TINY.model_copy(update={"phases": (TINY.phases[0].model_copy(update={"no_think": 0.25}),)})
    assert mixed.model_dump(mode="json")["phases"][0]["no_think"] == 0.25
    assert mixed.fingerprint() != TINY.fingerprint()
    assert KK.recipe.model_validate(mixed.model_dump()) == mixed


def test_the_learning_rate_warms_up_and_falls_to_its_final_share():
    phase = Phase(name="p", steps=100, lr=1.0, warmup=10, final_lr_ratio=0.1)
    rates = [learning_rate(phase, step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == rates[10] == 1.0
    assert rates[100] == pytest.approx(0.1)


def test_a_build_is_repeatable_and_the_seed_matters(tmp_path):
    def made(name, seed):
        return built.build(tmp_path / name, lab=KK, recipe=TINY, seed=seed, dev_count=8, samples=2)

    first, again, other = made("a", 0), made("b", 0), made("c", 1)
    assert first["weights_sha256"] == again["weights_sha256"] != other["weights_sha256"]
    assert first["config_sha256"] == again["config_sha256"] == other["config_sha256"]
    assert first["dev"] == again["dev"]
    assert built.read_manifest(tmp_path / "a") == first
    assert [agrees for _, agrees, _ in built.compare_builds(again, first)] == [True] * 4
    assert {what: agrees for what, agrees, _ in built.compare_builds(other, first)}["data"] is False


def test_a_build_is_a_model_folder_that_knows_its_prompt_style(tmp_path):
    built.build(tmp_path / "base", lab=KK, recipe=TINY, seed=0, dev_count=4, samples=1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model.save_pretrained(tmp_path / "again")
    assert AutoConfig.from_pretrained(tmp_path / "again").rlvr_prompt_style == "compact"
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == model.config.eos_token_id


def test_a_folder_with_something_in_it_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="not an empty folder"):
        built.build(tmp_path, lab=KK, recipe=KK.recipe(), seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_recipes_come_from_yaml_and_change_the_fingerprint(tmp_path):
    (tmp_path / "r.yaml").write_text("puzzles: 500\nmodel: {hidden: 64}\n")
    recipe = KK.read_recipe(tmp_path / "r.yaml")
    assert (recipe.puzzles, recipe.model.hidden, recipe.model.layers) == (500, 64, KK.recipe().model.layers)
    assert recipe.fingerprint() != KK.recipe().fingerprint() == load_recipe_of(tmp_path, "{}").fingerprint()


def load_recipe_of(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    return KK.read_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("puzles: 3", "recipe.yaml:1  puzles: unknown key. Did you mean `puzzles`?"),
        ("model: {hidden: 30, heads: 4}", "multiple of 2 x heads=8"),
        ("phases: [{name: a, steps: 5, lr: 0.1, people: {6: 1.0}}]", "numbers of people must be 2 to 5"),
        ("compound: 2", "compound: must be a number, at least 0 and at most 1; got 2"),
        ("phases: [{name: a, steps: 5, lr: 0.1, people: {2: 1.0}, no_think: 2}]", "phases.0.no_think: must be"),
        ("- a", "must be a mapping with the keys model, puzzles"),
        ("a: [", "not valid YAML"),
    ],
)
def test_bad_recipes_are_refused_with_file_and_key(tmp_path, text, message):
    with pytest.raises(UserError, match=r"recipe\.yaml") as error:
        load_recipe_of(tmp_path, text)
    assert message in str(error.value)


@pytest.mark.parametrize("name", LABS)
def test_the_shipped_base_is_the_one_its_manifest_describes(name):
    lab, base = LABS[name], LAB_BASES / name
    manifest, recipe = built.read_manifest(base), lab.recipe()
    assert manifest["lab"] == name
    assert built.file_hash(base / "model.safetensors") == manifest["weights_sha256"]
    assert built.file_hash(base / "tokenizer.json") == manifest["tokenizer_sha256"]
    assert built.model_config_hash(base) == manifest["config_sha256"]
    assert manifest["recipe_sha256"] == recipe.fingerprint()
    assert manifest["data_sha256"] == lab.data_hash(lab.pools(recipe, manifest["seed"]))
    assert sum(path.stat().st_size for path in base.iterdir()) < 5_000_000
    assert 0.2 <= manifest["dev"]["sampled"] <= 0.4 and manifest["dev"]["pass@32"] > 0.9


@pytest.mark.parametrize("name", LABS)
def test_the_shipped_base_answers_as_measured(name):
    model, tokenizer = (kind.from_pretrained(LAB_BASES / name) for kind in (AutoModelForCausalLM, AutoTokenizer))
    manifest = json.loads((LAB_BASES / name / built.MANIFEST).read_text())
    task = LABS[name].held_out(LABS[name].recipe())
    dev = measure(model.eval(), tokenizer, task, count=100, samples=4, max_new_tokens=160)
    assert dev["sampled"] == pytest.approx(manifest["dev"]["sampled"], abs=0.12)
    assert dev.get("format", 1.0) > 0.95


@pytest.mark.parametrize("name", LABS)
def test_the_preset_of_a_lab_trains_on_the_problems_that_its_base_was_measured_on(name):
    config = load_config(model="lab", task=name)
    assert PRESETS[config.model.name] == LAB_BASES / name
    assert config.task.for_model("compact").settings == LABS[name].held_out(LABS[name].recipe()).settings
    assert load_config(model=config.model.name).task.name == name
