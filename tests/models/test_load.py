"""Loading a model: what works, and one plain message for everything that does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rlvr_cli.core.errors import UserError
from rlvr_cli.models.load import eos_token_ids, load_model
from rlvr_cli.models.source import prompt_style, resolve_model
from tests.models.tiny import VOCABULARY, make


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make("qwen3", eos_token_id=7).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w3").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_saved_model_loads_in_float32_and_eval_mode_with_a_padding_token(folder: Path) -> None:
    model, tokenizer = load_model(str(folder))
    assert next(model.parameters()).dtype == torch.float32
    assert next(load_model(str(folder), dtype="bfloat16")[0].parameters()).dtype == torch.bfloat16
    assert not model.training
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 3
    assert eos_token_ids(model, tokenizer) == (3, 7)
    expected = make("qwen3", eos_token_id=7)
    assert torch.equal(model.lm_head.weight, expected.lm_head.weight)


@pytest.mark.parametrize(
    "unused",
    [
        {"do_sample": False, "temperature": 0.9, "top_p": 0.6},
        {"length_penalty": 2.0, "early_stopping": True},
        {"output_scores": True},
    ],
)
def test_values_that_generation_does_not_use_are_saved_as_they_were(
    folder: Path, tmp_path: Path, unused: dict[str, object]
) -> None:
    """transformers refuses to save them once a trainer has changed the padding token."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4], **unused}))
    model, tokenizer = load_model(str(folder))
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(tmp_path / "again")
    written = json.loads((tmp_path / "again" / "generation_config.json").read_text())
    written.pop("transformers_version")
    assert written == {"eos_token_id": [3, 4], "pad_token_id": tokenizer.pad_token_id, **unused}


def test_prompt_style_is_what_the_model_says_it_was_made_for(folder: Path) -> None:
    assert prompt_style(load_model(str(folder))[0].config) == "logic_rl"
    edit_config(folder, rlvr_prompt_style="compact")
    assert prompt_style(load_model(str(folder))[0].config) == "compact"
    assert prompt_style(json.loads((folder / "config.json").read_text())) == "compact"
    with pytest.raises(UserError, match="got 'odd'"):
        prompt_style({"rlvr_prompt_style": "odd"})


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def scramble_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(b"\xff" * 64 + path.read_bytes()[64:])


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("config.json"), "no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "not valid JSON"),
        (lambda folder: (folder / "config.json").write_text("{}"), "model_type"),
        (remove("model.safetensors"), "no weights"),
        (cut_weights, "damaged"),
        (scramble_header, "damaged"),
        (only_pickled, "can run code"),
        (missing_shard, "00001-of-00002.safetensors is missing"),
        (no_tokenizer, "no tokenizer"),
    ],
)
def test_a_bad_folder_is_found_before_anything_is_loaded(
    folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        resolve_model(str(folder))
    assert str(folder) in str(caught.value)


def test_what_is_no_folder_of_a_model_is_refused(folder: Path, tmp_path: Path) -> None:
    no_tokenizer(folder)
    remove("model.safetensors")(folder)
    with pytest.raises(UserError) as caught:
        resolve_model(str(folder))
    assert len(caught.value.problems) == 2
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for name, message in (
        ("./nowhere", "no such folder"),
        ("a/b/c", "no such folder"),
        ("two words", "no such folder"),
        (str(folder / "config.json"), "is a file"),
        (str(tmp_path / "run"), "is a run, not a model"),
    ):
        with pytest.raises(UserError, match=message):
            resolve_model(name)
    for name in (str(folder), "lab"):
        with pytest.raises(UserError, match=r"model.revision=abc: .* has no revisions"):
            resolve_model(name, revision="abc")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: edit_config(folder, num_hidden_layers=3), "cannot be loaded"),
        (lambda folder: edit_config(folder, attention_bias=True), r"lack model\.layers\.0.* and 5 more"),
        (lambda folder: edit_config(folder, model_type="unheard_of"), "cannot be loaded"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "cannot be loaded"),
        (
            lambda folder: edit_config(folder, model_type="mine", auto_map={"AutoConfig": "code.Config"}),
            "use --trust-remote-code",
        ),
    ],
)
def test_what_only_loading_shows_is_one_message_too(
    folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        load_model(str(folder))
    assert len(caught.value.problems) == 1
    assert "\n" not in str(caught.value)


def test_a_hub_id_that_is_not_cached_is_refused_when_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"org/model \(revision v2\).*offline|HF_HUB_OFFLINE"):
        resolve_model("org/model", revision="v2")
    cached = tmp_path / "models--org--model" / "snapshots" / "abc"
    cached.mkdir(parents=True)
    (cached / "config.json").write_text("{}")
    assert resolve_model("org/model").kind == "hub"
