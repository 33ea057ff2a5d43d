"""Lab builds: recipes, tokenizer, training data, repeatable builds, and the base that ships."""

import random

import pytest

from experiments.lab import LABS
from experiments.lab import build as built
from experiments.lab.build import draw_example
from experiments.lab.model import make_tokenizer
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.models.source import LAB_BASES, PRESETS
from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.tasks.kk_puzzles import hash_split, structure_key

KK = LABS["kk"]
TINY = KK.recipe.model_validate(
    {
        "model": {"hidden": 16, "layers": 1, "heads": 2, "feed_forward": 32},
        "puzzles": 60,
        "phases": [{"name": "clean", "steps": 20, "lr": 1e-3, "batch": 8, "people": {2: 0.5, 3: 0.5}}],
    }
)


def test_training_puzzles_are_of_the_train_split_and_depend_on_the_seed_alone():
    pools = KK.pools(TINY, seed=0)
    for pool in pools.values():
        assert {hash_split(structure_key(puzzle.statements)) for puzzle in pool} == {"train"}
    assert KK.data_hash(pools) == KK.data_hash(KK.pools(TINY, seed=0)) != KK.data_hash(KK.pools(TINY, seed=1))


def test_a_phase_answers_at_once_in_the_share_that_it_names():
    tokenizer, pools = make_tokenizer(compact.vocabulary()), KK.pools(TINY, 0)
    phase = TINY.phases[0].model_copy(update={"no_think": 0.25})
    rng = random.Random(0)
    drawn = [draw_example(KK, pools, phase, tokenizer, 128, rng) for _ in range(800)]
    traces = [tokenizer.decode(example.ids[example.prompt :]).split() for example in drawn]
    at_once = [trace for trace in traces if trace[0] == "</think>"]
    assert 150 < len(at_once) < 250
    assert all(compact.has_valid_format(" ".join(trace)) and len(trace) == 5 for trace in at_once)
    assert len({trace[2] for trace in at_once}) == 4 + 8, "every guess for two and for three people"


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


def load_recipe_of(tmp_path, text):
    (tmp_path / "recipe.yaml").write_text(text)
    return KK.read_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("puzles: 3", "recipe.yaml:1  puzles: unknown key. Did you mean `puzzles`?"),
        ("phases: [{name: a, steps: 5, lr: 0.1, people: {6: 1.0}}]", "numbers of people must be 2 to 5"),
        ("phases: [{name: a, steps: 5, lr: 0.1, people: {2: 1.0}, no_think: 2}]", "phases.0.no_think: must be"),
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
    assert built.file_digest(base / "model.safetensors") == manifest["weights_sha256"]
    assert built.file_digest(base / "tokenizer.json") == manifest["tokenizer_sha256"]
    assert built.model_config_hash(base) == manifest["config_sha256"]
    assert manifest["recipe_sha256"] == recipe.fingerprint()
    assert manifest["data_sha256"] == lab.data_hash(lab.pools(recipe, manifest["seed"]))
    assert sum(path.stat().st_size for path in base.iterdir()) < 5_000_000
    assert 0.2 <= manifest["dev"]["sampled"] <= 0.4 and manifest["dev"]["pass@32"] > 0.9


@pytest.mark.parametrize("name", LABS)
def test_the_preset_of_a_lab_trains_on_the_problems_that_its_base_was_measured_on(name):
    config = load_config(model="lab", task=name)
    assert PRESETS[config.model.name] == LAB_BASES / name
    assert config.task.for_model("compact").settings == LABS[name].held_out(LABS[name].recipe()).settings
    assert load_config(model=config.model.name).task.name == name
